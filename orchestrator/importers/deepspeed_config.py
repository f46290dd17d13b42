"""Import of a DeepSpeed configuration as a layout and a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.deepspeed_options import DEEPSPEED_OPTIONS
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from orchestrator.importers.settings import (
    CODE,
    FieldReaders,
    Settings,
    ValueRule,
    ValueRules,
    flat,
    one_of,
    positive,
    read_fields,
)
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import BATCH_RULE
from trials.trainers.common.deepspeed_config import DEFAULT_BUCKET_ELEMENTS, GRADIENT_BYTES

_TOTAL, _MICRO, _STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_ZERO = "zero_optimization"
CHARACTERISTIC_KEYS = (_TOTAL, _MICRO, _ZERO)
ZERO_STAGES: Mapping[str, int] = {str(stage): stage for stage in range(4)}
_COMPRESSED = ("onebitadam", "onebitlamb", "zerooneadam")
_ADAM = ("adam", "adamw")
_PRECISIONS = {
    **dict.fromkeys(("bfloat16", "bf16"), "bf16"),
    **dict.fromkeys(("float16", "fp16", "half"), "fp16"),
    **dict.fromkeys(("float32", "fp32", "float"), "fp32"),
}
"""By DeepSpeed's words for a type, with or without `torch.`."""


OF_THE_PROGRAM = ("activation_checkpointing", "attention_kernel")
"""Fields that the training program decides where its configuration does not."""


def looks_like_deepspeed(data: Mapping[str, Any]) -> bool:
    """True for a mapping with a key that nearly every configuration of DeepSpeed has."""
    return any(key in data for key in CHARACTERISTIC_KEYS)


def read_ds_config(text: str) -> ImportedConfig:
    """The layout values of a DeepSpeed configuration; absent keys have DeepSpeed's own defaults.

    InputError for text that is not a JSON object, for keys and values that no search file expresses, and for batch
    sizes that contradict each other. `auto`, which leaves a value to the trainer, is reported as not found.
    """
    keys = deepspeed_settings(json_object(text, CODE, "a DeepSpeed config"))
    if problems := [*keys.problems(DEEPSPEED_RULES)]:
        raise InputError(*problems)
    layout, origins = read_fields(keys, "baseline", LAYOUT_FIELDS)
    total, batch_origin = read_fields(keys, "", {"global_batch_size": lambda keys: keys.count(_TOTAL)})
    return ImportedConfig(
        "deepspeed",
        layout=layout,
        global_batch_size=total.get("global_batch_size"),
        origins={**origins, **batch_origin},
        notes=tuple(dict.fromkeys([*keys.notes, *keys.left_out(), *_differences(keys, layout)])),
        left_open=tuple(name for name in (*OF_THE_PROGRAM, "precision") if name not in layout),
        in_doubt=tuple(keys.in_doubt),
        changed=tuple(_changes(keys, layout)),
    )


def deepspeed_settings(config: Mapping[str, Any]) -> Settings:
    """The settings of a DeepSpeed configuration. `auto` is not known: the program that starts DeepSpeed sets it."""
    zero = config.get(_ZERO)
    if isinstance(zero, bool):  # how DeepSpeed wrote stage 1 at first
        config = {**config, _ZERO: {"stage": int(zero)}}
    given = flat(config, DEEPSPEED_OPTIONS, lambda name: None)
    doubt = "the program that starts DeepSpeed sets it"
    return Settings(
        {name: replace(each, doubt=doubt) if each.value == "auto" else each for name, each in given.items()},
        DEEPSPEED_OPTIONS,
    )


def _data_parallel(keys: Settings) -> int | None:
    """The data-parallel ranks, which follow where all three batch numbers are given."""
    total, micro, steps = keys.count(_TOTAL), keys.count(_MICRO), keys.count(_STEPS)
    if not (total and micro and steps):
        return None
    if total % (micro * steps):
        raise InputError.of(
            "batch",
            f"{_TOTAL} {total} is not a multiple of micro batch {micro} x accumulation {steps}",
            key=_TOTAL,
            value=total,
            rule=BATCH_RULE,
            fix=f"a multiple of {micro * steps}, or auto for the one of the three that the trainer is to fill in",
        )
    return total // (micro * steps)


def _grad_accum_steps(keys: Settings) -> int | None:
    """1 where the file has only one of the two batch sizes."""
    if keys.has(_STEPS):
        return keys.count(_STEPS)
    return 1 if keys.has(_TOTAL) != keys.has(_MICRO) else None


def _zero_stage(keys: Settings) -> int:
    stage: int = keys.chosen(f"{_ZERO}.stage", ZERO_STAGES, 0)
    return stage


def _offload(keys: Settings) -> str | None:
    device = keys.text(f"{_ZERO}.offload_optimizer.device")
    is_on_host = keys.flag(f"{_ZERO}.cpu_offload") if device is None else device == "cpu"
    return "optimizer" if is_on_host else None


def _overlap_comm(keys: Settings) -> bool | None:
    """DeepSpeed's default is true with ZeRO 3."""
    return keys.flag(f"{_ZERO}.overlap_comm", default=_zero_stage(keys) == 3) or None


def _bucket_mib(keys: Settings) -> int | None:
    """DeepSpeed counts a bucket in elements. None for its default size, which is no choice."""
    elements = keys.value(f"{_ZERO}.reduce_bucket_size")
    if not elements or elements == DEFAULT_BUCKET_ELEMENTS:
        return None
    width = GRADIENT_BYTES[_precision(keys)]
    return max(1, round(elements * width / 2**20))


def _precision(keys: Settings) -> str:
    """A section that is on prevails over one that the program that starts DeepSpeed may turn on."""
    switches = {"bf16.enabled": "bf16", "bfloat16.enabled": "bf16", "fp16.enabled": "fp16"}
    on = next((switches[name] for name in sorted(switches, key=keys.is_in_doubt) if keys.flag(name)), None)
    if on is None and keys.flag("torch_autocast.enabled"):
        on = _PRECISIONS.get((keys.text("torch_autocast.dtype") or "float16").removeprefix("torch."))
    return on or "fp32"


def _checkpointing(keys: Settings) -> str | None:
    interval = keys.value("pipeline.activation_checkpoint_interval")
    return "full" if isinstance(interval, int) and interval > 0 else None


LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": lambda keys: keys.count("tensor_parallel.autotp_size") if _has_ranks(keys) else None,
    "data_parallel": _data_parallel,
    "micro_batch_size": lambda keys: keys.count(_MICRO),
    "grad_accum_steps": _grad_accum_steps,
    "zero_stage": _zero_stage,
    "offload": _offload,
    "activation_checkpointing": _checkpointing,
    "precision": _precision,
    "overlap_comm": _overlap_comm,
    "bucket_mib": _bucket_mib,
}


def _has_ranks(keys: Settings) -> bool:
    """False for DeepSpeed's 0 tensor-parallel ranks, which are none."""
    return keys.value("tensor_parallel.autotp_size") not in (None, 0)


DEEPSPEED_RULES: ValueRules = (
    one_of(f"{_ZERO}.stage", ZERO_STAGES, "a ZeRO stage is 0, 1, 2 or 3"),
    one_of(
        f"{_ZERO}.offload_optimizer.device",
        ("none", "cpu"),
        reasons.NO_NVME,
    ),
    one_of(f"{_ZERO}.offload_optimizer.ratio", ("1", "1.0"), reasons.WHOLE_OPTIMIZER),
    positive(f"{_ZERO}.reduce_bucket_size", "a number of elements above 0"),
    ValueRule(
        "torch_autocast.dtype",
        lambda keys: str(keys.value("torch_autocast.dtype")).removeprefix("torch.") in _PRECISIONS,
        reasons.PRECISION,
    ),
    ValueRule(
        "optimizer.type",
        lambda keys: str(keys.value("optimizer.type")).lower() not in _COMPRESSED,
        "gradients compressed to one bit are no axis of a layout",
    ),
    ValueRule(
        "compile.passes",
        lambda keys: "autosp" not in keys.listed("compile.passes"),
        reasons.ULYSSES,
    ),
    ValueRule(
        "pipeline.activation_checkpoint_interval",
        lambda keys: type(keys.value("pipeline.activation_checkpoint_interval")) is int,
        "a whole number",
    ),
)
"""Values that no search file expresses, of keys that are read."""


def _differences(keys: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    for name in (_TOTAL, _MICRO, _STEPS):
        if name not in keys.given and not (name == _STEPS and "grad_accum_steps" in layout):
            yield f"{name} is not in the file: DeepSpeed derives it from the ranks."
    yield from bucket_notes(keys)
    if keys.has("torch_autocast.enabled"):
        yield "torch_autocast keeps parameters and gradients in fp32; trials have them in 16 bits beside fp32 masters."
    optimizer = keys.text("optimizer.type")
    if optimizer is not None and optimizer.lower() not in _ADAM:
        yield f"optimizer.type is {optimizer}; trials train with AdamW, which keeps two moments of each parameter."


def _changes(keys: Settings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    interval = "pipeline.activation_checkpoint_interval"
    if layout.get("activation_checkpointing") == "full" and keys.value(interval) != 1:
        yield keys.problem(interval, reasons.EACH_LAYER, "set it to 1")


def bucket_notes(keys: Settings) -> Iterator[str]:
    """A note on a bucket of gathered parameters that is not as large as that of gradients."""
    gathered, reduced = (keys.value(f"{_ZERO}.{name}_bucket_size") for name in ("allgather", "reduce"))
    if gathered not in (None, reduced or DEFAULT_BUCKET_ELEMENTS):
        yield f"{_ZERO}.allgather_bucket_size is {gathered}; in trials it is reduce_bucket_size."
