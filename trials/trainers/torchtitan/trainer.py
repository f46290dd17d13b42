"""torchtitan's own training program. Recipes have its configuration; trials train by it with Parlay's engine.

Standard library only.
"""

from __future__ import annotations

from search_spaces.engines import TORCHTITAN
from search_spaces.rules.trainer_rules import OWN_RULES
from trials.trainers.base import LayoutExport, Trainer
from trials.trainers.common.recipe import first_violation, torchrun
from trials.trainers.torchtitan.module import CONFIG_FILE, FUNCTION, config_files
from trials.trial import TrialSpec

_MODULE = f"recipe.{CONFIG_FILE.removesuffix('.py')}"


def _start(spec: TrialSpec) -> str:
    """torchrun adds the current folder, the parent of recipe/, to those that modules are imported from."""
    return f"{torchrun(spec)} -m torchtitan.train --module {_MODULE} --config {FUNCTION} YOUR_OPTIONS"


TRAINER = Trainer(
    rules={},
    export=LayoutExport(
        TORCHTITAN,
        "torchtitan",
        TORCHTITAN,
        first_violation(TORCHTITAN, OWN_RULES[TORCHTITAN]),
        config_files,
        _start,
    ),
)
