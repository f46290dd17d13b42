"""Import of an accelerate configuration, as `accelerate config` writes it, as a layout and a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.deepspeed_config import OF_THE_PROGRAM, read_ds_config
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.megatron.fields import other_backend
from orchestrator.config.importers.rows import ReadFields, read_rows
from orchestrator.config.importers.settings import FieldReaders, FileSettings, ValueRules, document_settings, one_of
from orchestrator.config.importers.source_file import ReadFile, yaml_document
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.errors import InputError
from trials.trainers.accelerate.config import ACCELERATE, REPLICAS, kind_of
from trials.trainers.common.deepspeed_config import DEEPSPEED
from trials.trainers.common.megatron_layout import KERNELS
from trials.trainers.table import Keys, Row, number, switch, word

_DEEPSPEED, _MEGATRON = "deepspeed_config.", "megatron_lm_config.megatron_lm_"
_DEEPSPEED_FILE = f"{_DEEPSPEED}deepspeed_config_file"


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
    read = read_rows(table, keys, _CLUSTER, _RULES)
    name = keys.text(_DEEPSPEED_FILE) if kind == "deepspeed" else None
    named = _add_deepspeed(read, name, read_file) if name and read_file else None
    read.complete(keys)
    notes = [*(f"{name}: {note}" for note in (named.notes if named else ())), *_differences(keys, read.layout)]
    return read.imported(
        "accelerate",
        keys,
        [*notes, *keys.not_read()],
        engine={"deepspeed": "deepspeed", "megatron_lm": "megatron-lm"}.get(kind, ACCELERATE_LAUNCH),
        left_open=tuple(n for n in OF_THE_PROGRAM if n not in read.layout and kind != "megatron_lm"),
        changed=named.changed if named else (),
    )


def _deepspeed_stage(keys: Keys) -> int | None:
    """None where the configuration that is named has it."""
    stages = {str(stage): stage for stage in range(4)}
    return None if keys.has(_DEEPSPEED_FILE) else keys.chosen(f"{_DEEPSPEED}zero_stage", stages, 2)


def _of_megatron(keys: Keys) -> str | None:
    words = {name: name for name in ("full", "selective")}
    default = "selective" if keys.has(f"{_MEGATRON}recompute_activations") else None
    return keys.chosen(f"{_MEGATRON}recompute_granularity", words, default)


def _megatron_kernel(keys: Keys) -> str | None:
    """Megatron-LM's auto is a fused one in half precision."""
    default = "flash" if keys.text("mixed_precision") in ("bf16", "fp16") else None
    return keys.chosen(f"{_MEGATRON}attention_backend", KERNELS, default, "attention_kernel is math or flash")


_ROWS_OF: Mapping[str, tuple[Row, ...]] = {
    "deepspeed": (
        number("grad_accum_steps", f"{_DEEPSPEED}gradient_accumulation_steps"),
        Row("zero_stage", read=_deepspeed_stage),
        word("data_parallel_replicas", REPLICAS, {1: 1}),
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
    ),
}
"""Rows of the types by which another trainer distributes the training; they prevail over accelerate's own."""
_TYPES = ("no", "multi_cpu", "multi_gpu", "fsdp", *_ROWS_OF)
_RULES: ValueRules = (
    one_of("compute_environment", ("local_machine",), "a search runs here or on Slurm; SageMaker starts its own ranks"),
    one_of("distributed_type", _TYPES, f"the types that can be read are {', '.join(_TYPES).upper()}"),
)


def _gpus_per_node(keys: FileSettings) -> int | None:
    """None where num_processes is absent or -1, with which the command gives it."""
    if keys.value("num_processes") in (None, -1):
        return 1 if kind_of(keys) == "no" else None
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
    "accelerator": lambda keys: "cpu" if keys.flag("use_cpu") or kind_of(keys) == "multi_cpu" else None,
}


def _add_deepspeed(read: ReadFields, name: str, read_file: ReadFile) -> ImportedConfig:
    """The values of the DeepSpeed configuration of this name, which are added to those that are read. accelerate sets
    the precision where that one does not."""
    try:
        found = read_ds_config(read_file(name))
    except InputError as error:
        raise error.at(file=name) from None
    is_open = found.origins.get("baseline.precision") in (None, f"{DEEPSPEED.trainer}'s default")
    if found.global_batch_size is not None:
        read.top["global_batch_size"] = found.global_batch_size
    read.layout.update({n: value for n, value in found.layout.items() if n != "precision" or not is_open})
    origins = {key: origin for key, origin in found.origins.items() if key != "baseline.precision" or not is_open}
    read.origins.update({key: f"{name}: {origin}" for key, origin in origins.items()})
    return found


def _differences(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    missing = "The model is" if "micro_batch_size" in layout else "The model and the micro-batch are"
    yield f"{missing} in the training script, not in the file."
    if not {"mixed_precision", "fp16"} & keys.given.keys() and kind_of(keys) != "deepspeed":
        yield "mixed_precision is not in the file: fp32 is its default, which `accelerate launch` may override."
    if keys.value("num_processes") == -1:
        yield "num_processes is -1: the command of `accelerate launch` gives it."
    if kind_of(keys) == "megatron_lm":
        yield from other_backend(keys.text(f"{_MEGATRON}attention_backend"), layout)
    if layout.get("matmul_precision") == "same":
        yield "With FSDP 2 accelerate never enters Transformer Engine's autocast: products are taken to be in bf16."
