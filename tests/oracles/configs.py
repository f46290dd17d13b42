"""Stand-ins for what trainers import that is not installed, and their configurations as plain data."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock, patch


@contextmanager
def transformer_engine_stubbed() -> Iterator[None]:
    """Megatron-core's checks of Transformer Engine, which is not installed, pass: version, rotary kernel, optimizer."""
    import megatron.core.utils
    from megatron.core.models.common.embeddings import rope_utils
    from packaging.version import Version

    package = "transformer_engine"
    modules = {name: ModuleType(name) for name in (package, f"{package}.pytorch", f"{package}.pytorch.optimizers")}
    vars(modules[f"{package}.pytorch.optimizers"])["FusedAdam"] = _FusedAdam
    with (
        patch.object(megatron.core.utils, "_te_version", Version("2.9.0")),
        patch.object(rope_utils, "fused_apply_rotary_pos_emb", MagicMock()),
        patch.dict(sys.modules, modules),
    ):
        yield


class _FusedAdam:
    def __init__(
        self,
        master_weight_dtype: object = None,
        exp_avg_dtype: object = None,
        exp_avg_sq_dtype: object = None,
        use_decoupled_grad: object = None,
    ) -> None: ...


def fields_of(config: Any) -> dict[str, Any]:
    """A dataclass' fields, as plain data."""
    return {field.name: plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def plain(value: Any) -> Any:
    """The value as JSON has it: a dtype, function or member of an enum by its name."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(inner) for inner in value]
    if isinstance(value, enum.Enum):
        return value.name if type(value.value) is int else plain(value.value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value).__name__ in ("dtype", "PosixPath"):
        return str(value).removeprefix("torch.")
    return getattr(value, "__name__", type(value).__name__)


# -- torchtitan's products in 8 bits, without torchao or a GPU that multiplies them


def prepare_torchtitan() -> None:
    """Stand in for what torchtitan imports of torchao, patch torch for a CPU, and let layers be converted there."""
    from torch import nn

    from trials.train.cpu_device.torchtitan import emulate_device

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
    emulate_device()
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
    from torchtitan.components.quantization import MXFP8Linear
    from torchtitan.models.common.linear import Linear

    found: dict[str, str | None] = {}
    for name, config, _, _ in model.traverse(Linear.Config):
        recipe = getattr(config, "_torchao_config", None)
        of_blocks = "mxfp8" if isinstance(config, MXFP8Linear.Config) else None
        found[name] = recipe.name if isinstance(recipe, _Recipe) else of_blocks
    return found
