"""Import of a DeepSpeed configuration as a layout and a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from search_spaces.errors import InputError, format_value
from search_spaces.layouts.layout import BATCH_RULE
from trials.trainers.common.deepspeed_config import DEFAULT_BUCKET_ELEMENTS, GRADIENT_BYTES


def read_ds_config(text: str) -> ImportedConfig:
    """The layout values of a DeepSpeed configuration.

    InputError for text that is not a JSON object and for batch sizes that contradict each other. `auto`, which leaves a
    value to the trainer, is reported as not found.
    """
    config = json_object(text, "deepspeed_config", "a DeepSpeed config")
    notes: list[str] = []
    total, layout = _read_batch(config, notes)
    layout |= _read_zero(config, notes) | _read_precision(config)
    if _enabled_interval(config):
        layout["activation_checkpointing"] = "full"
    return ImportedConfig("deepspeed", layout=layout, global_batch_size=total, notes=tuple(notes))


def _read_batch(config: Mapping[str, Any], notes: list[str]) -> tuple[int | None, dict[str, Any]]:
    """(global batch, layout values) of DeepSpeed's three batch numbers, and the number of data-parallel ranks where all
    are given."""
    total = _count(config, "train_batch_size", notes)
    micro = _count(config, "train_micro_batch_size_per_gpu", notes)
    steps = _count(config, "gradient_accumulation_steps", notes)
    values = {"micro_batch_size": micro, "grad_accum_steps": steps}
    if total and micro and steps:
        values["data_parallel"] = _data_ranks(total, micro, steps)
    return total, {name: value for name, value in values.items() if value is not None}


def _data_ranks(total: int, micro: int, steps: int) -> int:
    if total % (micro * steps):
        raise InputError.of(
            "batch",
            f"train_batch_size {total} is not a multiple of micro batch {micro} x accumulation {steps}",
            key="train_batch_size",
            value=total,
            rule=BATCH_RULE,
            fix=f"a multiple of {micro * steps}, or auto for the one of the three that the trainer is to fill in",
        )
    return total // (micro * steps)


def _count(config: Mapping[str, Any], key: str, notes: list[str]) -> int | None:
    """The whole number at `key`; None, with a note, where the file leaves it to the trainer."""
    value = config.get(key)
    if type(value) is int and value >= 1:
        return value
    if value is None or value == "auto":
        notes.append(f"{key} is {'not given' if value is None else 'auto'} in the DeepSpeed config.")
        return None
    raise InputError.of(
        "deepspeed_config", f"{key} is {format_value(value)}", key=key, value=value, rule="a whole number of at least 1"
    )


def _read_zero(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    section = _section(config, "zero_optimization")
    layout: dict[str, Any] = {}
    stage = section.get("stage", 0)
    if stage in (0, 1, 2, 3) and type(stage) is int:
        layout["zero_stage"] = stage
    else:
        notes.append(f"zero_optimization.stage is {format_value(stage)}, which is not a ZeRO stage.")
    if _on_cpu(section, "offload_optimizer", notes):
        layout["offload"] = "optimizer"
    if _on_cpu(section, "offload_param", notes):
        notes.append(
            "offload_param moves the parameters to the host, which no layout field expresses; it was left out."
        )
    if section.get("overlap_comm") is True:
        layout["overlap_comm"] = True
    return layout | _read_bucket(section, config)


def _on_cpu(section: Mapping[str, Any], key: str, notes: list[str]) -> bool:
    device = _section(section, key).get("device", "none")
    if device == "nvme":
        notes.append(f"{key} goes to NVMe, which no layout field expresses; it was left out.")
    return device == "cpu" or (key == "offload_optimizer" and section.get("cpu_offload") is True)


def _read_bucket(section: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    elements = section.get("reduce_bucket_size", DEFAULT_BUCKET_ELEMENTS)
    if type(elements) not in (int, float) or elements == DEFAULT_BUCKET_ELEMENTS or not math.isfinite(elements):
        return {}
    width = GRADIENT_BYTES[_read_precision(config)["precision"]]
    return {"bucket_mib": max(1, round(elements * width / 2**20))}


def _read_precision(config: Mapping[str, Any]) -> dict[str, Any]:
    for precision, keys in (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16",))):
        if any(_section(config, key).get("enabled") is True for key in keys):
            return {"precision": precision}
    return {"precision": "fp32"}


def _enabled_interval(config: Mapping[str, Any]) -> bool:
    interval = _section(config, "pipeline").get("activation_checkpoint_interval", 0)
    return type(interval) is int and interval > 0


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key)
    return section if isinstance(section, Mapping) else {}
