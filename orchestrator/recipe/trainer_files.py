"""The layout in its trainer's own words, beside recipe.yaml. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from search_spaces.engines import broken_engine_rules
from search_spaces.trainer_rules import engines_of
from trials.trainers.deepspeed_config import ds_config, why_not_deepspeed
from trials.trainers.invocation import invocation
from trials.trial import TrialSpec

GRADIENT_CLIPPING = 1.0
"""The largest gradient norm in ds_config.json: what Parlay's own trainer uses."""

_COMMAND_FILES = {
    "megatron-lm": "megatron_args.txt",
    "megatron-deepspeed": "megatron_deepspeed_args.txt",
    "command": "command.txt",
}
"""Where the words of a rank stand, for trainers that are told by words."""
_ABOUT = {
    "megatron_args.txt": "the options that Megatron-LM was measured with",
    "megatron_deepspeed_args.txt": "the options that Megatron-DeepSpeed was measured with",
    "ds_config.json": "the layout as a DeepSpeed configuration",
    "gpt_neox.yml": "the configuration that GPT-NeoX was measured with",
    "nanotron.yaml": "the configuration that nanotron was measured with",
    "command.txt": "the command that every rank was started with",
}


def trainer_files(spec: TrialSpec, python: str) -> dict[str, str]:
    """The files by name; `python` is the trainer's interpreter. None for what its trainer cannot run, only a table."""
    kind = spec.trainer.get("kind", "parlay")
    if kind == "parlay":
        return _ds_config_of(spec)
    if any(broken_engine_rules(spec.layout, spec.model, engines_of(kind))):
        return {}
    made = invocation(replace(spec, layout=spec.layout.canonical()), python, ".")
    words = {_COMMAND_FILES[kind]: _lines(made.words)} if kind in _COMMAND_FILES else {}
    return {**made.files, **words}


def about_trainer_files(trainer: Mapping[str, Any], why_no_ds_config: str | None, engine: str) -> Iterator[str]:
    """A line for people about each of them."""
    kind = trainer.get("kind", "parlay")
    if kind == "parlay" and why_no_ds_config is None:
        measured_with = "measured with it" if engine == "deepspeed" else "not measured with DeepSpeed"
        yield f"`ds_config.json`: {_ABOUT['ds_config.json']} ({measured_with})."
    elif kind == "parlay":
        yield f"There is no `ds_config.json`: {why_no_ds_config}."
    else:
        yield from (
            f"`{name}`: {_ABOUT[name]}; how long it trains, logs and evaluates is a trial's." for name in _NAMES[kind]
        )


_NAMES = {
    "megatron-lm": ("megatron_args.txt",),
    "megatron-deepspeed": ("megatron_deepspeed_args.txt", "ds_config.json"),
    "gpt-neox": ("gpt_neox.yml",),
    "nanotron": ("nanotron.yaml",),
    "command": ("command.txt",),
}


def _ds_config_of(spec: TrialSpec) -> dict[str, str]:
    layout = spec.layout
    if why_not_deepspeed(layout, spec.model) is not None:
        return {}
    config = ds_config(layout, layout.global_batch_size, GRADIENT_CLIPPING, spec.model)
    return {"ds_config.json": json.dumps(config, indent=2, allow_nan=False) + "\n"}


def _lines(words: Iterable[str]) -> str:
    """The words as a shell takes them, each option on a line of its own."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(shlex.join(line) for line in lines) + "\n"
