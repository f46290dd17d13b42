"""Registry of the trainers: every name in search_spaces/engines.py has its package here. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from search_spaces.engines import TRAINER_ENGINES
from search_spaces.rules.rule import EngineRules
from trials.trainers.base import Invocation, Trainer
from trials.trainers.command.trainer import without_placeholders
from trials.trainers.common.log_lines import NUMBER, LogFormat, command_format, number_in
from trials.trainers.table import merged, nested
from trials.trial import TrialSpec


def _declared(name: str) -> Trainer:
    """TRAINER of the package `gpt_neox`, for the name `gpt-neox`."""
    trainer: Trainer = import_module(f"trials.trainers.{name.replace('-', '_')}.trainer").TRAINER
    return trainer


TRAINERS: Mapping[str, Trainer] = {name: _declared(name) for name in TRAINER_ENGINES}

_DEEPSPEED_LOG = LogFormat(
    {
        "iteration": number_in(r"\bglobal_step=(\d+),"),
        "samples_per_sec": number_in(r"\bCurrSamplesPerSec=([\d.]+(?:[eE][-+]?\d+)?),"),
        "memory_allocated_gib": number_in(r"\bMaxMemAllocated=([\d.]+)GB"),
    }
)
_DEEPSPEED_PIPELINE_LOG = LogFormat(
    {
        "iteration": number_in(r"\bsteps: (\d+) loss:"),
        "loss": number_in(r"\bloss: " + NUMBER + r"\s"),
        "step_time_s": number_in(r"iter time \(s\): ([\d.]+) samples/sec:"),
        "samples_per_sec": number_in(r"samples/sec: ([\d.]+)\s*$"),
    }
)
_OBSERVER_LOG = LogFormat(
    {
        "iteration": number_in(r"^parlay: step (\d+) took "),
        "step_time_s": number_in(r"^parlay: step \d+ took ([\d.]+) s"),
        "memory_gib": number_in(r"^parlay: step .* ([\d.]+) GiB$"),
    }
)
OBSERVER = "observer"
"""Format of the lines that the observer in the ranks adds to a log (trials/external/observer)."""
LOG_FORMATS: Mapping[str, LogFormat] = {
    **{name: trainer.log_format for name, trainer in TRAINERS.items() if trainer.log_format is not None},
    "deepspeed": _DEEPSPEED_LOG,
    "deepspeed-pipeline": _DEEPSPEED_PIPELINE_LOG,
    OBSERVER: _OBSERVER_LOG,
}
"""The log formats by name, those of DeepSpeed and its pipeline included; a trainer's own has the trainer's name."""

ENGINE_RULES: EngineRules = {
    engine: TRAINERS[name].rules[engine] for name, engines in TRAINER_ENGINES.items() for engine in engines
}
"""The rules of every engine."""


def invocation(spec: TrialSpec, python: str, attempt_folder: str) -> Invocation:
    """The invocation of every rank of this trial; `python` is the trainer's interpreter.

    InputError for an invalid trainer section. The layout must be canonical.
    """
    make = TRAINERS[spec.trainer["kind"]].invocation
    assert make is not None, f"{spec.trainer['kind']} is started without a supervisor"
    return make(with_options(spec), python, attempt_folder)


def with_options(spec: TrialSpec) -> TrialSpec:
    """The spec whose trainer section has the options that the layout's settings give: words of the command line behind
    the user's arguments, keys of the configuration over the template's. A command line has a placeholder for them."""
    settings, trainer = spec.layout.of_trial, TRAINERS[spec.trainer["kind"]]
    if not settings.options or trainer.has_command_line:
        return spec
    words = [without_placeholders(word) if trainer.placeholder_axes else word for word in settings.arguments]
    section = {**spec.trainer, "arguments": (*spec.trainer.get("arguments", ()), *words)}
    if settings.keys:
        section["template"] = merged(spec.trainer["template"], nested(settings.keys))
    return replace(spec, trainer=section)


def preload_of(spec: TrialSpec) -> str | None:
    """Name of the imports after which this trial's ranks may be forked; None where they have to be started plain."""
    trainer = TRAINERS.get(spec.trainer["kind"])
    return None if trainer is None or trainer.preload is None else trainer.preload(spec)


def log_rank_of(spec: TrialSpec) -> int:
    """The rank that the search file names, else the one on which this trainer logs its steps."""
    wanted = spec.trainer.get("log_rank")
    if wanted is None:
        return TRAINERS[spec.trainer["kind"]].log_rank(spec)
    return {"first": 0, "last": spec.num_gpus - 1}.get(wanted, wanted)


def is_observed(section: Mapping[str, Any]) -> bool:
    """True if an observer sees the second step of this trainer's ranks, by the spec's trainer section."""
    return TRAINERS[section["kind"]].is_observed and section.get("observe", True)


def is_timed_by_observer(section: Mapping[str, Any]) -> bool:
    """True if the observer times the steps, by the spec's trainer section."""
    return _patterns_of(section) == OBSERVER


def log_format_of(section: Mapping[str, Any]) -> LogFormat:
    """A trainer's own format, a named one, or the user's patterns, by the spec's trainer section."""
    patterns = _patterns_of(section)
    return LOG_FORMATS[patterns] if isinstance(patterns, str) else command_format(patterns)


def _patterns_of(section: Mapping[str, Any]) -> str | Mapping[str, str]:
    return section.get("patterns") or (section["kind"] if section["kind"] in LOG_FORMATS else OBSERVER)
