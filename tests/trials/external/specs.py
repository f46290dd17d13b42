"""Specs of trials by real trainers on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.kit import SPEC, TINY
from trials.measure_rules import MeasureRules
from trials.trial import TrialSpec


def local_spec(layout: Layout, trainer: Mapping[str, Any], measure: MeasureRules, **changed: Any) -> TrialSpec:
    """A trial of the tiny model on one node of as many ranks as the layout has."""
    return replace(
        SPEC,
        layout=layout,
        model=TINY,
        global_batch_size=layout.global_batch_size,
        num_gpus=layout.num_gpus,
        gpus_per_node=layout.num_gpus,
        measure=measure,
        trainer=trainer,
        **changed,
    )
