"""Predicted pay-back of a search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.planning.explain import expected_pay_back
from tests.orchestrator.planning.test_plan import on_cpu, planned, searched


def test_the_cost_is_divided_by_what_the_first_layout_saves_an_hour(tmp_path):
    plan = planned(searched(tmp_path))
    row = next(row for row, factor in enumerate(plan.relative_step_time) if factor > 1.5)
    found = expected_pay_back(plan, plan.layouts[row])
    assert found is not None
    nodes, speedup = plan.layouts[0].num_nodes, float(plan.relative_step_time[row])
    assert found.hours == pytest.approx(plan.expected.guided / (nodes * (speedup - 1)))
    low, high = found.node_hours_saved_per_hour_low, found.node_hours_saved_per_hour_high
    assert low < found.node_hours_saved_per_hour < high
    assert expected_pay_back(plan, plan.layouts[row]) == found, "the draws are the same"


def test_a_baseline_that_is_predicted_to_be_nearly_as_fast_may_never_be_beaten(tmp_path):
    plan = planned(searched(tmp_path))
    found = expected_pay_back(plan, plan.layouts[1])
    assert found is not None
    low = found.node_hours_saved_per_hour_low
    assert (found.node_hours_saved_per_hour if low is None else low) <= 0


def test_without_a_comparison_there_is_none(tmp_path):
    plan = planned(searched(tmp_path))
    first = plan.layouts[0]
    assert expected_pay_back(plan, None) is None
    assert expected_pay_back(plan, first) is None
    assert expected_pay_back(plan, replace(first, grad_accum_steps=77)) is None, "it is not in the plan"
    unknown = planned(on_cpu(tmp_path))
    assert expected_pay_back(unknown, unknown.layouts[1]) is None, "seconds are unknown"
