"""Import of an accelerate configuration, as `accelerate config` writes it, as a layout and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.accelerate_options import ACCELERATE_OPTIONS
from orchestrator.importers.batch import complete_batch
from orchestrator.importers.deepspeed_config import OF_THE_PROGRAM, ZERO_STAGES, read_ds_config
from orchestrator.importers.deepspeed_options import DEEPSPEED_OPTIONS
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.megatron.layout_fields import KERNELS
from orchestrator.importers.settings import (
    FieldReaders,
    Settings,
    ValueRule,
    ValueRules,
    one_of,
    read_fields,
    turn_off_sequence_parallel,
)
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.yaml_config import document_settings, yaml_document
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.errors import InputError, Problem

_DEEPSPEED, _FSDP = "deepspeed_config.", "fsdp_config.fsdp_"
_MEGATRON, _PARALLELISM = "megatron_lm_config.megatron_lm_", "parallelism_config.parallelism_config_"
_SECTIONS_OF = {
    "no": (),
    "multi_cpu": (),
    "multi_gpu": (),
    "fsdp": ("fsdp_config", "parallelism_config"),
    "deepspeed": ("deepspeed_config", "parallelism_config"),
    "megatron_lm": ("megatron_lm_config",),
}
"""Sections that accelerate uses with each distributed_type that can be read."""
_ENGINE_SECTIONS = ("deepspeed_config", "fsdp_config", "megatron_lm_config", "parallelism_config")
_STRATEGIES = {"1": 3, "full_shard": 3, "2": 2, "shard_grad_op": 2, "3": 0, "no_shard": 0}
"""ZeRO stage of FSDP's strategies, by name and number."""
_PRECISIONS = {"no": "fp32", "false": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}
"""Precision of what is not multiplied in 8 bits; YAML 1.1 reads `no` as false."""
_FP8_KINDS = ("no", "multi_gpu", "fsdp", "deepspeed")


def looks_like_accelerate(data: Mapping[str, Any]) -> bool:
    """True for a mapping with distributed_type, without which accelerate takes no configuration."""
    return "distributed_type" in data


def read_accelerate(text: str, read_file: ReadFile | None = None) -> ImportedConfig:
    """The values of an accelerate configuration; absent keys have accelerate's own defaults.

    `read_file` reads the DeepSpeed configuration that it names. The model and the micro-batch are in the training
    script. InputError for text that is no YAML mapping, and for keys and values that no search file expresses.
    """
    keys, unused = _settings(text)
    if problems := [*keys.problems(_VALUE_RULES)]:
        raise InputError(*problems)
    layout, origins = read_fields(keys, "baseline", _LAYOUT_FIELDS)
    turn_off_sequence_parallel(layout, keys)
    cluster, cluster_origins = read_fields(keys, "cluster", _CLUSTER_FIELDS)
    name = keys.text(f"{_DEEPSPEED}deepspeed_config_file") if _kind(keys) == "deepspeed" else None
    named = _named_deepspeed(keys, name, read_file)
    if name and named:
        _add_deepspeed(keys, name, named, layout, origins)
    nodes, gpus = cluster.get("num_nodes"), cluster.get("gpus_per_node")
    batch = complete_batch(layout, named.global_batch_size if named else None, nodes, gpus, keys.in_doubt)
    return ImportedConfig(
        "accelerate",
        layout=layout,
        global_batch_size=batch,
        num_nodes=nodes,
        gpus_per_node=gpus,
        accelerator=cluster.get("accelerator"),
        origins={**origins, **cluster_origins},
        notes=tuple(dict.fromkeys([*keys.notes, *keys.left_out(), *unused, *_differences(keys, layout)])),
        engine=_ENGINES.get(_kind(keys), ACCELERATE_LAUNCH),
        left_open=tuple(_left_open(keys, layout, is_named=bool(name))),
        in_doubt=tuple(keys.in_doubt),
        changed=(*_changes(keys), *(named.changed if named else ())),
    )


_ENGINES = {"deepspeed": "deepspeed", "megatron_lm": "megatron-lm"}


def _left_open(keys: Settings, layout: Mapping[str, Any], is_named: bool) -> Iterator[str]:
    """Layout fields that the training script decides, or a DeepSpeed configuration that was not read."""
    if _kind(keys) != "megatron_lm":
        yield from (name for name in OF_THE_PROGRAM if name not in layout)
    if is_named and "zero_stage" not in layout:
        yield "zero_stage"


def _settings(text: str) -> tuple[Settings, list[str]]:
    """The settings without the sections that accelerate does not use, and a note on each of these."""
    document = yaml_document(text)
    used = _SECTIONS_OF.get(str(document.data.get("distributed_type")).lower(), _ENGINE_SECTIONS)
    unused = [name for name in _ENGINE_SECTIONS if document.data.get(name) and name not in used]
    paths = {name: (name,) for name in document.data if name not in unused}
    notes = [f"{name} has no effect with distributed_type {document.data['distributed_type']}." for name in unused]
    return document_settings(document, ACCELERATE_OPTIONS, paths), notes


def _kind(keys: Settings) -> str:
    return str(keys.value("distributed_type")).lower()


def _precision(keys: Settings) -> str | None:
    if keys.has("fp16") and not keys.has("mixed_precision"):
        return "fp16"
    return keys.chosen("mixed_precision", _PRECISIONS, "fp32")


def _matmul_precision(keys: Settings) -> str | None:
    """Recipe of the backend of fp8 (accelerate/utils/transformer_engine.py and ao.py)."""
    if not _is_fp8(keys):
        return None
    return "same" if _enters_no_autocast(keys) else _fp8_recipe(keys)


def _is_fp8(keys: Settings) -> bool:
    return str(keys.value("mixed_precision")).lower() == "fp8"


def _fp8_recipe(keys: Settings) -> str | None:
    """None for a backend that is not named, and for what is no recipe: MS-AMP, or some products in more bits."""
    given = keys.value("fp8_config")
    if not isinstance(given, Mapping) or _kind(keys) not in _FP8_KINDS:
        return None
    words = {str(name).lower().removeprefix("fp8_"): value for name, value in given.items()}
    kept = words.get("override_linear_precision")
    if isinstance(kept, list) and any(kept):
        return None
    of_te = "mxfp8" if words.get("use_mxfp8_block_scaling") is True else "fp8_delayed"
    return {"TE": of_te, "AO": "fp8_tensorwise"}.get(str(words.get("backend")).upper())


def _enters_no_autocast(keys: Settings) -> bool:
    """True for Transformer Engine with FSDP 2 (accelerate/accelerator.py, _prepare_fsdp2)."""
    return _is_fsdp2(keys) and _fp8_recipe(keys) in ("fp8_delayed", "mxfp8")


def _is_fsdp2(keys: Settings) -> bool:
    return _kind(keys) == "fsdp" and (keys.count(f"{_FSDP}version") or 1) == 2


def _tensor_parallel(keys: Settings) -> int | None:
    prefix = f"{_MEGATRON}tp_degree" if _kind(keys) == "megatron_lm" else f"{_PARALLELISM}tp_size"
    return keys.counted(prefix, 1)


def _data_parallel(keys: Settings) -> int | None:
    """Ranks of all replicas, where the file has any of the two sizes."""
    sizes = [keys.count(f"{_PARALLELISM}dp_{name}_size") for name in ("replicate", "shard")]
    return prod(size or 1 for size in sizes) if any(sizes) else None


def _zero_stage(keys: Settings) -> int | None:
    kind = _kind(keys)
    if kind == "deepspeed":
        has_file = keys.has(f"{_DEEPSPEED}deepspeed_config_file")
        return None if has_file else keys.chosen(f"{_DEEPSPEED}zero_stage", ZERO_STAGES, 2)
    if kind == "fsdp":
        return _fsdp_stage(keys)
    return 1 if keys.flag(f"{_MEGATRON}use_distributed_optimizer") else 0


def _fsdp_stage(keys: Settings) -> int | None:
    """FSDP 2 says whether parameters are sharded again after the forward pass; FSDP 1 names a strategy."""
    resharded = f"{_FSDP}reshard_after_forward"
    if _is_fsdp2(keys):
        return keys.chosen(resharded, {"true": 3, "false": 2}, 3)
    is_named = str(keys.value(resharded)).lower() in _STRATEGIES
    return keys.chosen(resharded if is_named else f"{_FSDP}sharding_strategy", _STRATEGIES, 3)


def _offload(keys: Settings) -> str | None:
    is_on_host = keys.text(f"{_DEEPSPEED}offload_optimizer_device") == "cpu"
    return "optimizer" if is_on_host or keys.flag(f"{_MEGATRON}optimizer_cpu_offload") else None


def _checkpointing(keys: Settings) -> str | None:
    if keys.flag(f"{_FSDP}activation_checkpointing"):
        return "full"
    if granularity := keys.text(f"{_MEGATRON}recompute_granularity"):
        return granularity
    return "selective" if keys.flag(f"{_MEGATRON}recompute_activations") else None


def _attention_kernel(keys: Settings) -> str | None:
    """Megatron-LM's auto prefers flash in half precision; elsewhere the training script chooses."""
    is_auto = _kind(keys) == "megatron_lm" and _precision(keys) in ("bf16", "fp16")
    return keys.chosen(f"{_MEGATRON}attention_backend", KERNELS, "flash" if is_auto else None)


def _torch_compile(keys: Settings) -> bool | None:
    """True for a backend; `no` is none."""
    name = "dynamo_config.dynamo_backend" if keys.has("dynamo_config.dynamo_backend") else "dynamo_backend"
    return True if str(keys.value(name)).lower() == "inductor" else None


_LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": _tensor_parallel,
    "pipeline_parallel": lambda keys: keys.counted(f"{_MEGATRON}pp_degree", 1),
    "data_parallel": _data_parallel,
    "grad_accum_steps": lambda keys: (
        keys.count(f"{_MEGATRON}num_micro_batches") or keys.count(f"{_DEEPSPEED}gradient_accumulation_steps")
    ),
    "zero_stage": _zero_stage,
    "offload": _offload,
    "activation_checkpointing": _checkpointing,
    "sequence_parallel": lambda keys: keys.flag(f"{_MEGATRON}sequence_parallelism") or None,
    "precision": _precision,
    "attention_kernel": _attention_kernel,
    "torch_compile": _torch_compile,
    "data_parallel_replicas": lambda keys: keys.count(f"{_PARALLELISM}dp_replicate_size"),
    "matmul_precision": _matmul_precision,
}


def _gpus_per_node(keys: Settings) -> int | None:
    """None where num_processes is absent or -1, with which the command gives it."""
    if keys.value("num_processes") in (None, -1):
        return 1 if _kind(keys) == "no" else None
    processes, machines = keys.count("num_processes"), keys.counted("num_machines", 1)
    if not (processes and machines):
        return None
    if processes % machines:
        rule = f"num_processes is a multiple of num_machines {machines}: a search has equal nodes"
        fix = f"set it to {processes // machines * machines or machines} in a copy of the file, or change num_machines"
        raise InputError(keys.problem("num_processes", rule, fix))
    return processes // machines


_CLUSTER_FIELDS: FieldReaders = {
    "num_nodes": lambda keys: keys.counted("num_machines", 1),
    "gpus_per_node": _gpus_per_node,
    "accelerator": lambda keys: "cpu" if keys.flag("use_cpu") or _kind(keys) == "multi_cpu" else None,
}


_VALUE_RULES: ValueRules = (
    one_of("compute_environment", ("local_machine",), "a search runs here or on Slurm; SageMaker starts its own ranks"),
    one_of(
        "distributed_type",
        _SECTIONS_OF,
        "the types that can be read are NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED and MEGATRON_LM",
    ),
    one_of("mixed_precision", _PRECISIONS, f"{reasons.PRECISION}, and fp8 is matmul_precision"),
    ValueRule(
        "mixed_precision",
        lambda keys: not _is_fp8(keys) or _fp8_recipe(keys) is not None,
        "fp8_config names the backend of fp8, TE or AO, all of whose products are in 8 bits; ranks are those of"
        f" {', '.join(kind.upper() for kind in _FP8_KINDS)}",
    ),
    one_of(
        f"{_FSDP}sharding_strategy", _STRATEGIES, "replicas beside shards (hybrid sharding) are no value of zero_stage"
    ),
    one_of(
        f"{_FSDP}reshard_after_forward",
        ("true", "false", *_STRATEGIES),
        "replicas beside shards (hybrid sharding) are no value of zero_stage",
    ),
    ValueRule(
        f"{_PARALLELISM}dp_replicate_size",
        lambda keys: _kind(keys) == "fsdp" or keys.count(f"{_PARALLELISM}dp_replicate_size") == 1,
        "replicas of shards are FSDP's",
        "correct it in the file",
    ),
    one_of(
        f"{_DEEPSPEED}offload_optimizer_device",
        ("none", "cpu"),
        reasons.NO_NVME,
    ),
    one_of(f"{_MEGATRON}attention_backend", KERNELS, reasons.ATTENTION_KERNEL),
    one_of(
        f"{_MEGATRON}recompute_granularity",
        ("full", "selective"),
        reasons.CHECKPOINTING,
    ),
)


def _named_deepspeed(keys: Settings, name: str | None, read_file: ReadFile | None) -> ImportedConfig | None:
    """The values of the DeepSpeed configuration of this name; None, with a note, where it is not read."""
    if name is None or read_file is None:
        if name is not None:
            keys.notes.append(f"{name} of deepspeed_config_file was not read: start from it to have its values.")
        return None
    try:
        return read_ds_config(read_file(name))
    except InputError as error:
        raise error.at(file=name) from None


def _add_deepspeed(
    keys: Settings, name: str, found: ImportedConfig, layout: dict[str, Any], origins: dict[str, str]
) -> None:
    """Add the values of the DeepSpeed configuration. accelerate sets the precision where that one does not."""
    default = f"{DEEPSPEED_OPTIONS.trainer}'s default"
    is_open = found.origins.get("baseline.precision") in (None, default)
    layout |= {field: value for field, value in found.layout.items() if field != "precision" or not is_open}
    origins |= {
        key: f"{name}: {origin}" for key, origin in found.origins.items() if key != "baseline.precision" or not is_open
    }
    keys.notes += [f"{name}: {note}" for note in found.notes]


def _differences(keys: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    missing = "The model is" if "micro_batch_size" in layout else "The model and the micro-batch are"
    yield f"{missing} in the training script, not in the file."
    if "mixed_precision" not in keys.given and "fp16" not in keys.given and _kind(keys) != "deepspeed":
        yield "mixed_precision is not in the file: fp32 is its default, which `accelerate launch` may override."
    if _is_fp8(keys):
        yield from _of_8_bits(keys)
    if keys.value("num_processes") == -1:
        yield "num_processes is -1: the command of `accelerate launch` gives it."


def _changes(keys: Settings) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    for name in ("dynamo_config.dynamo_backend", "dynamo_backend"):
        if (keys.text(name) or "no").lower() not in ("no", "inductor"):
            yield keys.problem(name, "torch_compile is the inductor's", "set it to inductor, or to no")


def _of_8_bits(keys: Settings) -> Iterator[str]:
    if _enters_no_autocast(keys):
        yield (
            "With FSDP 2 accelerate converts layers for Transformer Engine and never enters its autocast: products are"
            " taken to be in bf16."
        )
    elif _fp8_recipe(keys) == "fp8_tensorwise":
        yield "accelerate leaves the first and the last linear layer in bf16; trials leave the head alone."
