"""Trainer: the declaration in each trainer's package. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from search_spaces.engines import OWN_ENGINES
from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import features_of
from search_spaces.rules.rule import EngineRules, OfModel, Rule, violations
from trials.trainers.common.log_lines import LogFormat
from trials.trainers.table import Table
from trials.trial import TrialKind, TrialSpec

SCRIPT_KEYS = ("python", "arguments", "patterns", "log_rank")
"""Optional keys of a trainer that a script starts and whose log is known."""


PRELOADS = tuple(f"{engine}/{device}" for engine in OWN_ENGINES for device in ("cpu", "gpu"))
"""Names of what a fork server can have imported: the modules of an engine, with the settings for a kind of device."""


@dataclass(frozen=True)
class Invocation:
    """Start of one rank: its `command`; `files` (name to text) that must be in the attempt's folder before;
    `environment`, applied to variables that are not set; `refused`, variables that are unset where they have this
    value."""

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayoutExport:
    """The layout in the files of a trainer, for a recipe.

    `name` and `title` are those of the recipe's entry. The layout is exported with this engine unless it violates one
    of the `rules`; `files` (name to text) hold it, and `start` is the command line that trains with them in the parent
    folder of recipe/, None where the trainer cannot run it on the spec's device. `of_software` are lines to add to them
    for the measurement's fingerprint. `left_out` are the values of fields that the trainer ignores, or that the files
    do not have: other values are no reason against the export.
    """

    name: str
    title: str
    engine: str
    rules: Sequence[Rule]
    files: Callable[[TrialSpec], dict[str, str]]
    start: Callable[[TrialSpec], str | None]
    of_software: Callable[[Mapping[str, Any]], str] = lambda fingerprint: ""
    left_out: Mapping[str, Any] = field(default_factory=dict)

    def problem(self, layout: Layout, model: ModelShape) -> Problem | None:
        """The first feature of the model that the engine lacks, or rule that the layout violates, if any."""
        asked = replace(layout.canonical(), engine=self.engine, **self.left_out).canonical()
        rules = (*features_of(self.engine), *self.rules)
        return next(violations(rules, asked, OfModel(model), self.name), None)


def first_rank(spec: TrialSpec) -> int:
    return 0


def last_rank(spec: TrialSpec) -> int:
    return spec.num_gpus - 1


SPARE_STEPS = 10
"""Extra steps for those that a trainer may not log (the first, skipped ones)."""
NEVER = 1_000_000
"""An interval that no trial reaches."""


def train_iterations(spec: TrialSpec) -> int:
    """The most steps that a measurement may take, with some to spare."""
    rules = spec.measure
    most = max(rules.max_steps, rules.finalist_steps) if spec.kind is TrialKind.REPEAT else rules.max_steps
    return rules.max_warmup_steps + most + SPARE_STEPS


@dataclass(frozen=True)
class Trainer:
    """A trainer: which layouts it runs, how its ranks are started, how its log is read, its files in a recipe.

    `rules` are those of its engines; without any it runs no trials. `required_keys` and `optional_keys` are those of
    the search file's section `trainer`. Its `template` is a command line with `has_command_line`, else a configuration
    to start from: the keys of a file, or the keys themselves.

    `invocation` starts every rank of a trial by the trainer's interpreter and the attempt's folder, for a canonical
    layout; InputError for an invalid section. None if the trainer needs no supervisor. `log_rank` is the rank that logs
    the steps; without a `log_format` the user gives patterns. `argument_error` is the reason why the user's arguments
    may not have an option of this name. What a configuration's `table` refuses is refused in the template, too;
    `model_keys` are keys that it may have, dotted, with no other values than these for this model. `placeholder_axes`
    are the axes that only placeholders express, in the template of a command line, else in the arguments; without any,
    neither has placeholders. A command line `shows_layout` if a reader of the recipe can use it. `is_observed` where
    the log does not show world and batch, so that an observer in the ranks has to. `preload` is what may be imported
    before a rank of a trial is forked, one of PRELOADS; without it ranks are started plain. `trained_model` is a model
    as it trains with these arguments of the user's.
    """

    rules: EngineRules
    required_keys: tuple[str, ...] = ()
    optional_keys: tuple[str, ...] = ()
    has_command_line: bool = False
    invocation: Callable[[TrialSpec, str, str], Invocation] | None = None
    log_format: LogFormat | None = None
    log_rank: Callable[[TrialSpec], int] = first_rank
    argument_error: Callable[[str], str | None] | None = None
    table: Table | None = None
    model_keys: Callable[[ModelShape], Mapping[str, Any]] = lambda model: {}
    placeholder_axes: tuple[str, ...] = ()
    shows_layout: bool = False
    is_observed: bool = False
    export: LayoutExport | None = None
    preload: Callable[[TrialSpec], str] | None = None
    trained_model: Callable[[ModelShape, Sequence[str]], ModelShape] = lambda model, arguments: model

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the search file's section that this trainer has."""
        return self.required_keys + self.optional_keys
