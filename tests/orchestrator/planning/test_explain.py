"""Explanation of a plan: two layouts side by side, what fits, what is rejected, and the predicted pay-back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.plan_table import plan_text
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.explain import expected_pay_back, explain_layouts, time_saved_s
from orchestrator.planning.plan import plan_of
from tests.orchestrator.planning.test_plan import on_cpu, planned, searched

BASELINE = "baseline={tensor_parallel: 8, pipeline_parallel: 2, activation_checkpointing: full}"
AXES = ("space.tensor_parallel=[1, 2, 8]", "space.pipeline_parallel=[1, 2, 5]", "space.micro_batch_size=[1, 2, 32]")


@pytest.fixture
def spec(tmp_path: Path) -> SearchSpec:
    return searched(tmp_path, BASELINE, *AXES)


def test_the_parts_of_both_layouts_add_up_and_their_difference_is_what_is_saved(spec):
    plan = plan_of(spec, candidates_of(spec))
    first, baseline = (each.plain() for each in explain_layouts(plan, spec.baseline))
    assert (first["what"], first["place"], first["layout_key"]) == ("first", 1, plan.layouts[0].key)
    assert (baseline["what"], baseline["layout_key"]) == ("baseline", spec.baseline.key)
    assert plan.layouts[baseline["place"] - 1] == spec.baseline
    saved = time_saved_s(plan, spec.baseline)
    assert sum(saved.values()) == pytest.approx(baseline["step_time_s"] - first["step_time_s"])
    for name, seconds in saved.items():
        assert seconds == pytest.approx(baseline["time_s"][name] - first["time_s"][name])
    assert baseline == plan.first()[baseline["place"] - 1] | {
        name: baseline[name] for name in ("what", "place", "hfu", "fullest_stage", "parts_gib")
    }


def test_memory_by_part_is_that_of_the_fullest_stage(spec):
    plan = plan_of(spec, candidates_of(spec))
    factor = plan.first(1)[0]["peak_memory_gib"]
    for each in explain_layouts(plan, spec.baseline):
        row, parts = each.plain(), each.parts_gib
        always = parts["weights"] + parts["gradients"] + parts["optimizer"] + parts["buffers"]
        fullest = always + max(parts["activations"] + parts["logits"], parts["update"])
        assert each.fullest_stage == row["memory_gib"].index(max(row["memory_gib"]))
        assert 1.0 < row["peak_memory_gib"] / fullest < 1.2, factor


def test_the_share_of_the_peak_with_recomputation_is_larger_only_where_something_is_recomputed(spec):
    plan = plan_of(spec, candidates_of(spec))
    for each in explain_layouts(plan, spec.baseline):
        row = each.plain()
        recomputes = row["layout"]["activation_checkpointing"] == "full"
        assert row["hfu"] / row["mfu"] == pytest.approx(1.32 if recomputes else 1.0, abs=0.02)


def test_a_baseline_that_is_the_first_is_reported_once(spec):
    plan = plan_of(spec, candidates_of(spec))
    [only] = explain_layouts(plan, plan.layouts[0])
    assert only.what == "first"
    assert set(time_saved_s(plan, plan.layouts[0]).values()) == {0.0}
    alone = replace(candidates_of(spec), baseline=plan.layouts[0])
    assert "predicted for the first layout, which is the baseline:" in plan_text(plan, spec, alone, 3, False, True)


def test_without_a_baseline_the_first_is_explained_alone(tmp_path):
    spec = searched(tmp_path, *AXES)
    plan, space = plan_of(spec, candidates_of(spec)), candidates_of(spec)
    assert [each.what for each in explain_layouts(plan, None)] == ["first"]
    assert time_saved_s(plan, None) is None
    told = plan_text(plan, spec, space, 3, False, True)
    assert "predicted for the first layout:" in told
    assert "time saved" not in told


def test_each_rule_that_refuses_has_an_example_with_its_numbers(spec):
    space = candidates_of(spec)
    examples = space.examples()
    assert set(examples) == set(space.rejected_by_rule) == {"world", "batch"}
    every = list(space.rejected())
    for rule, example in examples.items():
        assert example == next(rejected for rejected in every if rejected.problem.code == rule)
    told = plan_text(plan_of(spec, space), spec, space, 3, False, True)
    assert f"  world, for example {examples['world'].problem.message}" in told


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
