"""accelerate's table, and a layout as its configuration, as `accelerate config` writes it. Standard library only.

accelerate 1.15: accelerate/commands/config/config_args.py, commands/launch.py, utils/dataclasses.py
(FullyShardedDataParallelPlugin) and parallelism_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from trials.trainers.table import Keys, Row, Table, Values, by_option, fixed, nested
from trials.trial import TrialSpec

MIXED_PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
FSDP, PARALLELISM, DYNAMO = "fsdp_config.fsdp_", "parallelism_config.parallelism_config_", "dynamo_config.dynamo_"
REPLICAS = f"{PARALLELISM}dp_replicate_size"
_STRATEGIES = {"1": 3, "full_shard": 3, "2": 2, "shard_grad_op": 2, "3": 0, "no_shard": 0}
"""ZeRO stage of FSDP's strategies, by name and number."""
_FP8_KINDS = ("no", "multi_gpu", "fsdp", "deepspeed")


# -- how a configuration is read


def kind_of(keys: Keys) -> str:
    """Who distributes the training, in lower case."""
    return str(keys.value("distributed_type")).lower()


def _is_fsdp2(keys: Keys) -> bool:
    return kind_of(keys) == "fsdp" and keys.count(f"{FSDP}version") == 2


def _precision(keys: Keys) -> str:
    """Precision of what is not multiplied in 8 bits; YAML 1.1 reads `no` as false."""
    if keys.has("fp16") and not keys.has("mixed_precision"):
        return "fp16"
    words = {theirs: ours for ours, theirs in MIXED_PRECISIONS.items()} | {"false": "fp32", "fp8": "bf16"}
    rule = "precision is fp32, bf16 or fp16, and fp8 is matmul_precision"
    return keys.chosen("mixed_precision", words, "fp32", rule)


def _matmul_precision(keys: Keys) -> str | None:
    """Recipe of the backend of fp8 (accelerate/utils/transformer_engine.py and ao.py). With FSDP 2 accelerate converts
    layers for Transformer Engine and never enters its autocast (accelerator.py, _prepare_fsdp2)."""
    if keys.text("mixed_precision") != "fp8":
        return None
    given = keys.value("fp8_config")
    given = given if isinstance(given, Mapping) else {}
    words = {str(name).lower().removeprefix("fp8_"): value for name, value in given.items()}
    kept = words.get("override_linear_precision")
    of_te = "mxfp8" if words.get("use_mxfp8_block_scaling") is True else "fp8_delayed"
    recipe = {"TE": of_te, "AO": "fp8_tensorwise"}.get(str(words.get("backend")).upper())
    if recipe is None or (isinstance(kept, list) and any(kept)) or kind_of(keys) not in _FP8_KINDS:
        rule = "fp8_config names the backend of fp8, TE or AO, all of whose products are in 8 bits; ranks are those of "
        raise InputError(keys.problem("mixed_precision", rule + ", ".join(_FP8_KINDS).upper()))
    return "same" if _is_fsdp2(keys) and recipe != "fp8_tensorwise" else recipe


def _zero_stage(keys: Keys) -> int | None:
    """FSDP 2 says whether parameters are sharded again after the forward pass; FSDP 1 names a strategy."""
    if kind_of(keys) != "fsdp":
        return None
    name, values = f"{FSDP}reshard_after_forward", {"true": 3, "false": 2}
    if not _is_fsdp2(keys):
        name, values = name if isinstance(keys.value(name), str) else f"{FSDP}sharding_strategy", _STRATEGIES
    return keys.chosen(name, values, 3, "replicas beside shards (hybrid sharding) are no value of zero_stage")


def _checkpointing(keys: Keys) -> str | None:
    return "full" if kind_of(keys) == "fsdp" and keys.has(f"{FSDP}activation_checkpointing") else None


def _data_parallel(keys: Keys) -> int | None:
    """Ranks of all replicas, where the file has any of the two sizes."""
    sizes = [keys.count(name) for name in (REPLICAS, f"{PARALLELISM}dp_shard_size")]
    return prod(size or 1 for size in sizes) if any(sizes) else None


def _torch_compile(keys: Keys) -> bool:
    words, names = {"inductor": True, "no": False, "false": False}, (f"{DYNAMO}backend", "dynamo_backend")
    return any(keys.chosen(name, words, False, "torch_compile is the inductor's") for name in names)


# -- how a layout is written


def _fsdp_keys(spec: TrialSpec) -> Values:
    if not is_fsdp(spec.layout):
        return {}
    others = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "offload_params": False,
        "state_dict_type": "SHARDED_STATE_DICT",
        "cpu_ram_efficient_loading": True,
    }
    return _with_prefix(FSDP, {n.removeprefix("fsdp_"): v for n, v in fsdp_settings(spec.layout).items()} | others)


def _parallelism_keys(spec: TrialSpec) -> Values:
    """Without replicas FSDP shards over all ranks by default."""
    has_replicas = spec.layout.data_parallel_replicas > 1
    return _with_prefix(PARALLELISM, parallelism_settings(spec.layout)) if has_replicas else {}


def _dynamo_keys(spec: TrialSpec) -> Values:
    return _with_prefix(DYNAMO, dynamo_settings(spec.layout)) if spec.layout.torch_compile else {}


def _with_prefix(prefix: str, settings: Values) -> Values:
    return {prefix + name: value for name, value in settings.items()}


ACCELERATE = Table(
    "accelerate",
    "1.15.0",
    rows=(
        Row(
            "precision",
            lambda spec: {"mixed_precision": MIXED_PRECISIONS[spec.layout.precision]},
            _precision,
            tuple(MIXED_PRECISIONS),
        ),
        Row("matmul_precision", read=_matmul_precision),
        Row("zero_stage", _fsdp_keys, _zero_stage, (0, 2, 3)),
        Row("activation_checkpointing", read=_checkpointing, values=("none", "full")),
        Row("data_parallel_replicas", _parallelism_keys, lambda keys: keys.count(REPLICAS)),
        Row("data_parallel", read=_data_parallel),
        Row("torch_compile", _dynamo_keys, _torch_compile),
        # Tensor and pipeline parallelism are up to the script or another trainer.
        Row("tensor_parallel", read=lambda keys: keys.count(f"{PARALLELISM}tp_size") or 1, values=(1,)),
        Row("pipeline_parallel", read=lambda keys: 1, values=(1,)),
        # DDP and FSDP overlap by themselves. Buckets and offload are up to the script or another trainer.
        *fixed(offload="none", overlap_comm=False, bucket_mib=None),
    ),
    trains_another=by_option(
        {
            "context parallelism is no axis of a layout with this trainer": "*_cp_size *_context_parallel_size",
            "sequences split over ranks (Ulysses) are no axis of a layout": "*_sp_size",
            "experts are not read from this trainer": """
                *_moe_layer_cls_names *_expert_model_parallel_size *_expert_tensor_parallel_size
                """,
            "this sharding is no value of zero_stage": "*_use_custom_fsdp",
            "parameters in host memory or on NVMe are no value of offload": "*offload_param_device *_offload_params",
            "uneven pipeline stages are no axis of a layout with this trainer": "*_decoder_last_pipeline_num_layers",
            "partial recomputation is no value of activation_checkpointing": "*_recompute_method *_recompute_num*",
        }
    ),
    whole=frozenset({"fp8_config"}),
)


def accelerate_config(spec: TrialSpec) -> dict[str, Any]:
    """The keys of the configuration. Which layers are wrapped, checkpointed and compiled follows from the model
    (`_no_split_modules`, module lists)."""
    is_on_cpu = spec.accelerator == "cpu"
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type(spec.layout, is_on_cpu),
        "use_cpu": is_on_cpu,
        "num_machines": spec.num_nodes,
        "num_processes": spec.layout.num_gpus,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "debug": False,
        "enable_cpu_affinity": False,
        **nested(ACCELERATE.written(spec)),
    }


def distributed_type(layout: Layout, is_on_cpu: bool) -> str:
    """Name of the way in which accelerate distributes this layout; DDP has one of each kind of device."""
    if layout.num_gpus == 1:
        return "NO"
    if is_fsdp(layout):
        return "FSDP"
    return "MULTI_CPU" if is_on_cpu else "MULTI_GPU"


def is_fsdp(layout: Layout) -> bool:
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
