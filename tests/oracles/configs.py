"""Configurations that installed trainers make of an export."""

from __future__ import annotations

import dataclasses
import enum
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

Values = dict[str, Any]


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


def of_deepspeed(config: Mapping[str, Any], data_parallel: int, has_pipeline: bool) -> Values:
    """DeepSpeed's configuration, the dtypes of its engine, and `optimizer`, the kind of its wrapper: ValueError or
    AssertionError where it refuses them."""
    import torch
    from deepspeed.runtime import config as runtime
    from deepspeed.runtime.engine import DeepSpeedEngine

    mesh = SimpleNamespace(get_data_parallel_world_size=lambda: data_parallel)
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    with patch.object(runtime.dist, "get_rank", lambda *_: 0):
        made = runtime.DeepSpeedConfig(dict(config), mpu=mesh)
        vars(engine).update(_config=made, global_rank=0, pipeline_parallelism=has_pipeline)
        wrapper = engine._do_optimizer_sanity_check(torch.optim.AdamW([torch.zeros(1)]))
    model_dtype, gradient_dtype = engine.get_data_types()
    dtypes = {
        "model_dtype": model_dtype,
        "gradient_dtype": gradient_dtype,
        "sent_dtype": engine.communication_data_type,
    }
    return {name: plain(value) for name, value in {**vars(made), **dtypes, "optimizer": wrapper}.items()}


def of_accelerate(path: str) -> Values:
    """Values that accelerate's launcher makes of the file, and a script of the environment."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import TorchDynamoPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    words = ["--config_file", path, "--main_process_port", "0", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    by_torchrun = args.use_fsdp or args.multi_gpu
    environment = prepare_multi_gpu_env(args) if by_torchrun else prepare_simple_launcher_cmd_env(args)[1]
    with patch.dict(os.environ, environment, clear=True):
        return {
            "num_processes": args.num_processes,
            "num_machines": args.num_machines,
            "mixed_precision": os.environ["ACCELERATE_MIXED_PRECISION"],
            "dynamo": fields_of(TorchDynamoPlugin()),
            **_sharding_of_accelerate(args.mixed_precision),
        }


def _sharding_of_accelerate(mixed_precision: str) -> Values:
    """FSDP's plugin and the sizes of the mesh, as accelerate/accelerator.py makes them; null without."""
    from accelerate import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    sizes = ParallelismConfig() if os.environ.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true" else None
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return {"fsdp": None, "sizes": sizes and fields_of(sizes)}
    plugin = FullyShardedDataParallelPlugin()
    if mixed_precision != "no":
        plugin.set_mixed_precision(mixed_precision)
    policy = plugin.mixed_precision_policy
    return {
        "fsdp": {
            "version": plugin.fsdp_version,
            "reshards": plugin.reshard_after_forward,
            "recomputes": plugin.activation_checkpointing,
            "offload": type(plugin.cpu_offload).__name__,
            "policy": policy and [plain(policy.param_dtype), plain(policy.reduce_dtype)],
        },
        "sizes": sizes and fields_of(sizes),
    }


def fields_of(config: Any) -> Values:
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
