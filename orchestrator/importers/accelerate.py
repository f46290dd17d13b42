"""Import of an accelerate configuration, as `accelerate config` writes it, as a layout and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from orchestrator.importers.batch import complete_batch
from orchestrator.importers.deepspeed_config import OF_THE_PROGRAM, read_ds_config
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.rows import ReadFields, read_rows
from orchestrator.importers.settings import (
    FieldReaders,
    Settings,
    ValueRules,
    one_of,
    read_fields,
)
from orchestrator.importers.source_file import ReadFile
from orchestrator.importers.yaml_config import document_settings, yaml_document
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.errors import InputError
from trials.trainers.accelerate.config import ACCELERATE, FSDP, PARALLELISM
from trials.trainers.common.deepspeed_config import DEEPSPEED
from trials.trainers.table import Keys, Row, number, switch, word

_DEEPSPEED, _MEGATRON = "deepspeed_config.", "megatron_lm_config.megatron_lm_"
_DEEPSPEED_FILE, _REPLICAS = f"{_DEEPSPEED}deepspeed_config_file", f"{PARALLELISM}dp_replicate_size"
_STRATEGIES = {"1": 3, "full_shard": 3, "2": 2, "shard_grad_op": 2, "3": 0, "no_shard": 0}
"""ZeRO stage of FSDP's strategies, by name and number."""
_KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "math", "local": "math"}
_FP8_KINDS = ("no", "multi_gpu", "fsdp", "deepspeed")


def looks_like_accelerate(data: Mapping[str, Any]) -> bool:
    """True for a mapping with distributed_type, without which accelerate takes no configuration."""
    return "distributed_type" in data


def read_accelerate(text: str, read_file: ReadFile | None = None) -> ImportedConfig:
    """The values of an accelerate configuration; absent keys have accelerate's own defaults.

    `read_file` reads the DeepSpeed configuration that it names. The model and the micro-batch are in the training
    script. InputError for text that is no YAML mapping, and for keys and values that no search file expresses.
    """
    document = yaml_document(text)
    kind = str(document.data.get("distributed_type")).lower()
    table = replace(ACCELERATE, rows=(*ACCELERATE.rows, *_ROWS_OF.get(kind, ())))
    keys = document_settings(document, table)
    read = read_rows(table, keys, rules=_RULES)
    cluster, of_cluster = read_fields(keys, "cluster", _CLUSTER)
    name = keys.text(_DEEPSPEED_FILE) if kind == "deepspeed" else None
    named = _add_deepspeed(read, name, read_file) if name and read_file else None
    nodes, gpus = cluster.get("num_nodes"), cluster.get("gpus_per_node")
    batch = complete_batch(read.layout, named.global_batch_size if named else None, nodes, gpus, keys.in_doubt)
    notes = [*(f"{name}: {note}" for note in (named.notes if named else ())), *_differences(keys, read.layout)]
    return ImportedConfig(
        "accelerate",
        layout=read.layout,
        global_batch_size=batch,
        num_nodes=nodes,
        gpus_per_node=gpus,
        accelerator=cluster.get("accelerator"),
        origins={**read.origins, **of_cluster},
        notes=tuple(dict.fromkeys([*keys.notes, *notes, *keys.not_read()])),
        engine={"deepspeed": "deepspeed", "megatron_lm": "megatron-lm"}.get(kind, ACCELERATE_LAUNCH),
        left_open=tuple(n for n in OF_THE_PROGRAM if n not in read.layout and kind != "megatron_lm"),
        in_doubt=tuple(keys.in_doubt),
        changed=named.changed if named else (),
    )


def _kind(keys: Keys) -> str:
    return str(keys.value("distributed_type")).lower()


def _data_parallel(keys: Keys) -> int | None:
    """Ranks of all replicas, where the file has any of the two sizes."""
    sizes = [keys.count(name) for name in (_REPLICAS, f"{PARALLELISM}dp_shard_size")]
    return prod(size or 1 for size in sizes) if any(sizes) else None


def _fsdp_stage(keys: Keys) -> int:
    """FSDP 2 says whether parameters are sharded again after the forward pass; FSDP 1 names a strategy."""
    name, values = f"{FSDP}reshard_after_forward", {"true": 3, "false": 2}
    if not _is_fsdp2(keys):
        name, values = name if isinstance(keys.value(name), str) else f"{FSDP}sharding_strategy", _STRATEGIES
    return keys.chosen(name, values, 3, "replicas beside shards (hybrid sharding) are no value of zero_stage")


def _is_fsdp2(keys: Keys) -> bool:
    return _kind(keys) == "fsdp" and keys.count(f"{FSDP}version") == 2


def _deepspeed_stage(keys: Keys) -> int | None:
    """None where the configuration that is named has it."""
    stages = {str(stage): stage for stage in range(4)}
    return None if keys.has(_DEEPSPEED_FILE) else keys.chosen(f"{_DEEPSPEED}zero_stage", stages, 2)


def _of_megatron(keys: Keys) -> str | None:
    words = {name: name for name in ("full", "selective")}
    default = "selective" if keys.has(f"{_MEGATRON}recompute_activations") else None
    return keys.chosen(f"{_MEGATRON}recompute_granularity", words, default)


def _megatron_kernel(keys: Keys) -> str | None:
    """Megatron-LM's auto prefers flash in half precision."""
    default = "flash" if keys.text("mixed_precision") in ("bf16", "fp16") else None
    return keys.chosen(f"{_MEGATRON}attention_backend", _KERNELS, default, "attention_kernel is math or flash")


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
    if recipe is None or (isinstance(kept, list) and any(kept)) or _kind(keys) not in _FP8_KINDS:
        rule = "fp8_config names the backend of fp8, TE or AO, all of whose products are in 8 bits; ranks are those of "
        raise InputError(keys.problem("mixed_precision", rule + ", ".join(_FP8_KINDS).upper()))
    return "same" if _is_fsdp2(keys) and recipe != "fp8_tensorwise" else recipe


_ONE_STAGE = Row("pipeline_parallel", read=lambda keys: 1)
_IN_8_BITS = Row("matmul_precision", read=_matmul_precision)
_ALONE = (Row("tensor_parallel", read=lambda keys: 1), _ONE_STAGE, _IN_8_BITS)
_MESH = (
    number("tensor_parallel", f"{PARALLELISM}tp_size", 1),
    _ONE_STAGE,
    Row("data_parallel", read=_data_parallel),
    _IN_8_BITS,
)
_ROWS_OF: Mapping[str, tuple[Row, ...]] = {
    **dict.fromkeys(("no", "multi_cpu", "multi_gpu"), _ALONE),
    "fsdp": (
        *_MESH,
        number("data_parallel_replicas", _REPLICAS),
        Row("zero_stage", read=_fsdp_stage),
        Row(
            "activation_checkpointing",
            read=lambda keys: "full" if keys.has(f"{FSDP}activation_checkpointing") else None,
        ),
    ),
    "deepspeed": (
        *_MESH,
        number("grad_accum_steps", f"{_DEEPSPEED}gradient_accumulation_steps"),
        Row("zero_stage", read=_deepspeed_stage),
        word("data_parallel_replicas", _REPLICAS, {1: 1}),
        word("offload", f"{_DEEPSPEED}offload_optimizer_device", {"none": "none", "optimizer": "cpu"}, "none"),
    ),
    "megatron_lm": (
        number("tensor_parallel", f"{_MEGATRON}tp_degree", 1),
        number("pipeline_parallel", f"{_MEGATRON}pp_degree", 1),
        number("grad_accum_steps", f"{_MEGATRON}num_micro_batches"),
        word("zero_stage", f"{_MEGATRON}use_distributed_optimizer", {0: False, 1: True}, 0),
        word("offload", f"{_MEGATRON}optimizer_cpu_offload", {"none": False, "optimizer": True}, "none"),
        switch("sequence_parallel", f"{_MEGATRON}sequence_parallelism", False),
        Row("activation_checkpointing", read=_of_megatron),
        Row("attention_kernel", read=_megatron_kernel),
        _IN_8_BITS,
    ),
}
_RULES: ValueRules = (
    one_of("compute_environment", ("local_machine",), "a search runs here or on Slurm; SageMaker starts its own ranks"),
    one_of("distributed_type", _ROWS_OF, f"the types that can be read are {', '.join(_ROWS_OF).upper()}"),
)


def _gpus_per_node(keys: Settings) -> int | None:
    """None where num_processes is absent or -1, with which the command gives it."""
    if keys.value("num_processes") in (None, -1):
        return 1 if _kind(keys) == "no" else None
    processes, machines = keys.count("num_processes"), keys.count("num_machines") or 1
    if not (processes and machines):
        return None
    if processes % machines:
        rule = f"num_processes is a multiple of num_machines {machines}: a search has equal nodes"
        fix = f"set it to {processes // machines * machines or machines} in a copy of the file, or change num_machines"
        raise InputError(keys.problem("num_processes", rule, fix))
    return processes // machines


_CLUSTER: FieldReaders = {
    "num_nodes": lambda keys: keys.count("num_machines") or 1,
    "gpus_per_node": _gpus_per_node,
    "accelerator": lambda keys: "cpu" if keys.flag("use_cpu") or _kind(keys) == "multi_cpu" else None,
}


def _add_deepspeed(read: ReadFields, name: str, read_file: ReadFile) -> ImportedConfig:
    """The values of the DeepSpeed configuration of this name, which are added to those that are read. accelerate sets
    the precision where that one does not."""
    try:
        found = read_ds_config(read_file(name))
    except InputError as error:
        raise error.at(file=name) from None
    is_open = found.origins.get("baseline.precision") in (None, f"{DEEPSPEED.trainer}'s default")
    read.layout.update({n: value for n, value in found.layout.items() if n != "precision" or not is_open})
    origins = {key: origin for key, origin in found.origins.items() if key != "baseline.precision" or not is_open}
    read.origins.update({key: f"{name}: {origin}" for key, origin in origins.items()})
    return found


def _differences(keys: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    missing = "The model is" if "micro_batch_size" in layout else "The model and the micro-batch are"
    yield f"{missing} in the training script, not in the file."
    if not {"mixed_precision", "fp16"} & keys.given.keys() and _kind(keys) != "deepspeed":
        yield "mixed_precision is not in the file: fp32 is its default, which `accelerate launch` may override."
    if keys.value("num_processes") == -1:
        yield "num_processes is -1: the command of `accelerate launch` gives it."
    if layout.get("matmul_precision") == "same":
        yield "With FSDP 2 accelerate never enters Transformer Engine's autocast: products are taken to be in bf16."
