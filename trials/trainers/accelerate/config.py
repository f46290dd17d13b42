"""A layout as accelerate's configuration, as `accelerate config` writes it. Standard library only.

accelerate 1.15: accelerate/commands/config/config_args.py, commands/launch.py, utils/dataclasses.py
(FullyShardedDataParallelPlugin) and parallelism_config.py.
"""

from __future__ import annotations

from typing import Any

from search_spaces.layouts.layout import Layout

MIXED_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def accelerate_config(layout: Layout, num_machines: int = 1, is_on_cpu: bool = False) -> dict[str, Any]:
    """The keys of the configuration. Which layers are wrapped, checkpointed and compiled follows from the model
    (`_no_split_modules`, module lists)."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type(layout, is_on_cpu),
        "mixed_precision": MIXED_PRECISIONS[layout.precision],
        "use_cpu": is_on_cpu,
        "num_machines": num_machines,
        "num_processes": layout.num_gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "debug": False,
        "enable_cpu_affinity": False,
        **_sections(layout),
    }


def distributed_type(layout: Layout, is_on_cpu: bool = False) -> str:
    """Name of the way in which accelerate distributes this layout; DDP has one of each kind of device."""
    if layout.num_gpus == 1:
        return "NO"
    if is_sharded(layout):
        return "FSDP"
    return "MULTI_CPU" if is_on_cpu else "MULTI_GPU"


def is_sharded(layout: Layout) -> bool:
    """True for ZeRO 2 and 3 over several ranks, which are FSDP2."""
    return layout.zero_stage >= 2 and layout.data_parallel > 1


def fsdp_settings(layout: Layout) -> dict[str, Any]:
    """Arguments of FullyShardedDataParallelPlugin. FSDP2 gathers weights again for the backward pass where it reshards
    them after the forward pass: ZeRO 3."""
    return {
        "fsdp_version": 2,
        "reshard_after_forward": layout.zero_stage == 3,
        "activation_checkpointing": layout.activation_checkpointing == "full",
    }


def parallelism_settings(layout: Layout) -> dict[str, int]:
    """Arguments of ParallelismConfig for a layout that is sharded."""
    return {
        "dp_replicate_size": layout.data_parallel_replicas,
        "dp_shard_size": layout.shards,
        "tp_size": layout.tensor_parallel,
        "cp_size": 1,
    }


def dynamo_settings(layout: Layout) -> dict[str, Any]:
    """Arguments of TorchDynamoPlugin: the layers are compiled one by one, the same kind of layer once."""
    if not layout.torch_compile:
        return {"backend": "NO"}
    return {"backend": "INDUCTOR", "mode": "default", "use_regional_compilation": True}


def cpu_variables(layout: Layout) -> dict[str, str]:
    """The configuration of DDP on a CPU as the variables that `accelerate launch` makes of it (utils/launch.py,
    prepare_simple_launcher_cmd_env)."""
    dynamo = {f"ACCELERATE_DYNAMO_{name.upper()}": str(value) for name, value in dynamo_settings(layout).items()}
    mixed_precision = MIXED_PRECISIONS[layout.precision]
    return {"ACCELERATE_USE_CPU": "True", "ACCELERATE_MIXED_PRECISION": mixed_precision, **dynamo}


def _sections(layout: Layout) -> dict[str, dict[str, Any]]:
    """The sections that have an effect. Without replicas FSDP shards over all ranks by default."""
    sections: dict[str, dict[str, Any]] = {}
    if is_sharded(layout):
        sections["fsdp_config"] = _with_prefix("fsdp_", fsdp_settings(layout)) | _OTHER_FSDP_KEYS
    if layout.data_parallel_replicas > 1:
        sections["parallelism_config"] = _with_prefix("parallelism_config_", parallelism_settings(layout))
    if layout.torch_compile:
        sections["dynamo_config"] = _with_prefix("dynamo_", dynamo_settings(layout))
    return sections


def _with_prefix(prefix: str, settings: dict[str, Any]) -> dict[str, Any]:
    return {prefix + name.removeprefix(prefix): value for name, value in settings.items()}


_OTHER_FSDP_KEYS = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_offload_params": False,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": True,
}
