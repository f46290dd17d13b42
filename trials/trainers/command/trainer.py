"""Any trainer, started by the command line of a template, which decides what it runs. Standard library only."""

from __future__ import annotations

from search_spaces.layouts.layout import SEARCHED
from search_spaces.rules.engine_rules import some_layers_recomputed
from search_spaces.rules.rule import engine_limits
from trials.trainers.base import Invocation, Trainer
from trials.trainers.command.template import command_arguments
from trials.trial import TrialSpec


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    return Invocation(tuple(command_arguments(spec.trainer["template"], spec, python, folder)))


TRAINER = Trainer(
    rules={"command": (some_layers_recomputed, *engine_limits("command"))},
    required_keys=("template", "patterns"),
    optional_keys=("python", "log_rank", "observe"),
    has_command_line=True,
    placeholder_axes=tuple(name for name in SEARCHED if name != "num_nodes"),
    invocation=_invocation,
    is_observed=True,
    shows_layout=True,
)
