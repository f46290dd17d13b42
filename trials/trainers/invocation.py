"""Command, files and environment of a third-party trainer for a layout. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trials.trainers.command.template import command_arguments
from trials.trainers.common.deepspeed_config import ds_config, fp32_sums
from trials.trainers.common.megatron_options import environment_of, megatron_deepspeed_options, megatron_lm_options
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.gpt_neox.config import neox_arguments, neox_config, zero_section
from trials.trainers.nanotron.config import nanotron_config
from trials.trial import TrialSpec

MAX_GRAD_NORM = 1.0
"""Megatron's own default of --clip-grad."""
MEGATRON_DEEPSPEED_CONFIG = "megatron_deepspeed_config.json"


@dataclass(frozen=True)
class Invocation:
    """Start of one rank: its `command`; `files` (name to text) that must be in the attempt's folder before;
    `environment`, applied to variables that are not set."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def invocation(spec: TrialSpec, python: str, attempt_folder: str) -> Invocation:
    """The invocation of every rank of this trial; `python` is the trainer's interpreter.

    InputError for an invalid trainer section. The layout must be canonical.
    """
    return _INVOCATIONS[spec.trainer["kind"]](spec, python, attempt_folder)


def _megatron_lm(spec: TrialSpec, python: str, folder: str) -> Invocation:
    words = megatron_lm_options(spec, _arguments(spec))
    return Invocation((python, spec.trainer["script"], *words), environment=environment_of(spec.layout))


def _megatron_deepspeed(spec: TrialSpec, python: str, folder: str) -> Invocation:
    name = MEGATRON_DEEPSPEED_CONFIG
    words = megatron_deepspeed_options(spec, f"{folder}/{name}", _arguments(spec))
    files = {name: plain_yaml(megatron_deepspeed_config(spec))}
    return Invocation((python, spec.trainer["script"], *words), files, environment_of(spec.layout))


def megatron_deepspeed_config(spec: TrialSpec) -> dict[str, Any]:
    """The DeepSpeed configuration for Megatron-DeepSpeed's options; the ZeRO stages of both must agree."""
    config = ds_config(spec.layout, spec.global_batch_size, MAX_GRAD_NORM)
    config.pop("data_types", None)
    return {**config, "zero_optimization": zero_section(spec.layout, {}), **fp32_sums(spec.layout)}


def _gpt_neox(spec: TrialSpec, python: str, folder: str) -> Invocation:
    config = neox_config(spec, spec.trainer["template"])
    # The file is only informative: train.py gets the configuration as an argument.
    files = {"gpt_neox.yml": plain_yaml(config)}
    return Invocation((python, spec.trainer["script"], *neox_arguments(config), *_arguments(spec)), files)


def _nanotron(spec: TrialSpec, python: str, folder: str) -> Invocation:
    name = "nanotron.yaml"
    config = nanotron_config(spec, spec.trainer["template"])
    words = (python, spec.trainer["script"], "--config-file", f"{folder}/{name}", *_arguments(spec))
    return Invocation(words, {name: plain_yaml(config)}, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})


def _command(spec: TrialSpec, python: str, folder: str) -> Invocation:
    return Invocation(tuple(command_arguments(spec.trainer["template"], spec, python, folder)))


def _arguments(spec: TrialSpec) -> tuple[str, ...]:
    return tuple(spec.trainer.get("arguments", ()))


_INVOCATIONS: dict[str, Callable[[TrialSpec, str, str], Invocation]] = {
    "megatron-lm": _megatron_lm,
    "megatron-deepspeed": _megatron_deepspeed,
    "gpt-neox": _gpt_neox,
    "nanotron": _nanotron,
    "command": _command,
}
