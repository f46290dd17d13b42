"""Import of a DeepSpeed configuration as a layout and a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import CODE, FileSettings, flat
from orchestrator.config.importers.source_file import json_object
from trials.trainers.common.deepspeed_config import DEEPSPEED, MICRO, STEPS, TOTAL, ZERO

CHARACTERISTIC_KEYS = (TOTAL, MICRO, ZERO)
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
    keys = _settings(json_object(text, CODE, "a DeepSpeed config"))
    read = read_rows(DEEPSPEED, keys)
    read.complete(keys)
    left_open = tuple(name for name in (*OF_THE_PROGRAM, "precision") if name not in read.layout)
    notes = [*_differences(keys, read.layout), *keys.not_read()]
    return read.imported("deepspeed", keys, notes, engine="deepspeed", left_open=left_open)


def _settings(config: Mapping[str, Any]) -> FileSettings:
    """The settings of a DeepSpeed configuration. `auto` is not known: the program that starts DeepSpeed sets it."""
    zero = config.get(ZERO)
    if isinstance(zero, bool):  # how DeepSpeed wrote stage 1 at first
        config = {**config, ZERO: {"stage": int(zero)}}
    given = flat(config, DEEPSPEED, lambda name: None)
    doubt = "the program that starts DeepSpeed sets it"
    in_doubt = {name: replace(each, doubt=doubt) for name, each in given.items() if each.value == "auto"}
    return FileSettings(given | in_doubt, DEEPSPEED)


def _differences(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not, and on what the file does not say."""
    for name in (TOTAL, MICRO, STEPS):
        if name not in keys.given and not (name == STEPS and "grad_accum_steps" in layout):
            yield f"{name} is not in the file: DeepSpeed derives it from the ranks."
    if keys.has("torch_autocast.enabled"):
        yield "torch_autocast keeps parameters and gradients in fp32; trials have them in 16 bits beside fp32 masters."
    optimizer = keys.text("optimizer.type")
    if optimizer is not None and optimizer.lower() not in ("adam", "adamw"):
        yield f"optimizer.type is {optimizer}; trials train with AdamW, which keeps two moments of each parameter."
