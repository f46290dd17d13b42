"""Routing of experts in trials by each engine: real ranks, and the loads that they count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import MODEL, RULES, faulty, make_spec
from trials.trial import FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

EXPERTS = replace(
    MODEL,
    num_layers=4,
    position_embedding="rotary",
    norm="rmsnorm",
    gated_mlp=True,
    num_experts=4,
    experts_per_token=2,
    expert_ffn_hidden_size=32,
    num_dense_layers=1,
)
ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2, expert_tensor_parallel=2, activation_checkpointing="full")
DP2 = replace(ONE, data_parallel=2)


def spec_of(layout: Layout, routing: str) -> Any:
    return make_spec(layout, model=EXPERTS, measure=replace(RULES, routing=routing))


@pytest.mark.parametrize(
    ("layout", "routing", "skew"),
    [
        (TP2, "balanced", 1.0),
        pytest.param(replace(ONE, pipeline_parallel=2), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        pytest.param(replace(DP2, zero_stage=3), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        (replace(DP2, zero_stage=3, engine="deepspeed"), "skewed(1.5)", 1.5),
        pytest.param(replace(TP2, engine="deepspeed"), "balanced", 1.0, marks=pytest.mark.walks),
        (ONE, "learned", None),
    ],
)
def test_experts_have_the_loads_that_were_asked_for_and_uneven_ones_by_a_router_left_alone(
    start, layout, routing, skew
):
    trial = start(spec_of(layout, routing))
    assert not any(trial.wait()), trial.logs()
    metrics = trial.outcome().metrics
    assert trial.result().state is TrialState.MEASURED
    assert metrics.expert_tokens_mean == trial.spec.global_batch_size * EXPERTS.seq_length * 2 / 4
    assert metrics.expert_tokens_most > 1.1 * metrics.expert_tokens_mean or skew == 1.0
    assert skew is None or metrics.expert_tokens_most == skew * metrics.expert_tokens_mean


def test_loads_that_were_not_asked_for_are_no_result(start):
    trial = start(spec_of(ONE, "balanced"), program=faulty("leave_the_choice_of_experts_to_the_router"))
    trial.wait()
    outcome = trial.outcome()
    assert outcome.reason is FailureReason.RESULT_INVALID
    assert "times the mean of 32; measure.routing is balanced" in outcome.excerpt
