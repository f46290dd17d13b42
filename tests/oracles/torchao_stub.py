"""torchtitan's conversion of linear layers to 8-bit floats, without torchao or a GPU that multiplies them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

RECIPES = ("rowwise", "rowwise_with_gw_hp", "tensorwise")


def stub_torchao() -> None:
    """Stand in for what torchtitan imports of torchao, before it does; nothing where torchao is installed."""
    if find_spec("torchao") is not None:
        return
    from torch import nn

    contents: dict[str, dict[str, Any]] = {
        "torchao": {},
        "torchao.float8": {"Float8LinearConfig": _Recipe},
        "torchao.float8.float8_linear": {"Float8Linear": nn.Linear},
        "torchao.prototype.moe_training.mxfp8_linear": {"MXFP8Linear": nn.Linear},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        sys.modules[name] = module


def convert_on_any_device() -> None:
    """Have torchtitan convert layers without a GPU that multiplies them."""
    from torchtitan.components.quantization import float8, mx

    float8.has_cuda_capability = mx.has_cuda_capability = lambda *_: True


@dataclass(frozen=True)
class _Recipe:
    name: str = ""
    emulate: bool = False

    @classmethod
    def from_recipe_name(cls, name: str) -> _Recipe:
        return cls(name)


def products_of(model: Any) -> dict[str, str | None]:
    """torchao's recipe of each linear layer of a torchtitan model's configuration; None for torch's own products."""
    from torchao.float8 import Float8LinearConfig
    from torchtitan.components.quantization import MXFP8Linear
    from torchtitan.models.common.linear import Linear

    recipes = {name: Float8LinearConfig.from_recipe_name(name) for name in RECIPES}
    found = {}
    for name, config, _, _ in model.traverse(Linear.Config):
        made = getattr(config, "_torchao_config", None)
        of_blocks = "mxfp8" if isinstance(config, MXFP8Linear.Config) else None
        found[name] = next((recipe for recipe, one in recipes.items() if one == made), of_blocks)
    return found
