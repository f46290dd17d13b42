"""Verification of a layout's axis values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.layouts.layout import AXES, Layout
from search_spaces.verification import NOT_VERIFIED, Level, Verification, level_of

TITAN = Layout(engine="torchtitan", attention_kernel="flex", precision="bf16", tensor_parallel=2)


@pytest.mark.parametrize(
    ("layout", "level", "values"),
    [
        (Layout(tensor_parallel=8, grad_accum_steps=3), "run", []),
        (TITAN, "run", []),
        (replace(TITAN, torch_compile=True), "parsed", ["torch_compile True"]),
        (replace(TITAN, precision="fp16"), "by rule", ["precision fp16"]),
    ],
)
def test_a_layout_is_as_verified_as_its_least_verified_value(layout, level, values):
    found = Verification.of(layout.canonical())
    assert found.to_json() == {"level": level, "values": values}
    assert str(found) == (f"{level} ({', '.join(values)})" if values else level)


def test_a_value_without_effect_is_not_judged():
    assert Verification.of(replace(TITAN, tensor_parallel=1, data_parallel_replicas=2).canonical()).level is Level.RUN


@pytest.mark.parametrize("axis", AXES)
def test_what_nobody_declared_is_by_rule(axis):
    assert level_of("command", axis, AXES[axis].default) is Level.BY_RULE
    assert level_of("torch", axis, AXES[axis].default) is (Level.BY_RULE if axis in NOT_VERIFIED else Level.RUN)
    assert level_of("torch", "precision", "a new word") is Level.BY_RULE
