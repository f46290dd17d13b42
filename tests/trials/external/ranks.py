"""Trials of a fake trainer, whose supervisors start as a launcher would start them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.kit import TINY
from tests.trials.train.trial_processes import make_spec, start_trial
from trials.measure_rules import MeasureRules
from trials.trial import TrialSpec

FAKE = str(Path(__file__).with_name("fake_trainer.py"))
RULES = MeasureRules(min_steps=5, max_steps=30, max_warmup_steps=20, ci_relative_width=0.5, time_limit_s=60.0)
start = partial(start_trial, program=("trials.external",))


def local_spec(layout: Layout, trainer: Mapping[str, Any], measure: MeasureRules, **changed: Any) -> TrialSpec:
    """A trial of the tiny model on one node of as many ranks as the layout has."""
    return make_spec(layout, model=TINY, measure=measure, trainer=trainer, **changed)


def spec_for(fault: str = "", rules: MeasureRules = RULES, **trainer: Any) -> TrialSpec:
    """A spec for the fake trainer as Megatron-LM on two tensor-parallel ranks."""
    layout = Layout(tensor_parallel=2, grad_accum_steps=4, engine="megatron-lm")
    arguments = ["--fault", fault] if fault else []
    return local_spec(layout, {"kind": "megatron-lm", "script": FAKE, "arguments": arguments} | trainer, rules)
