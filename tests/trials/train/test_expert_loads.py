"""Routing of experts in trials by each engine: real ranks, and the loads that they count."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from tests.trials.train.parity import needs_megatron, needs_torchtitan
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import MODEL, RULES, RunningTrial, faulty, make_spec
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
EP2 = {"expert_parallel": 2, "expert_tensor_parallel": 1}


def expect(trial: RunningTrial, skew: float, tolerance: float = 0.0) -> None:
    assert not any(trial.wait()), trial.logs()
    metrics = trial.outcome().metrics
    assert metrics is not None
    assert metrics.expert_tokens_mean == trial.spec.global_batch_size * EXPERTS.seq_length * 2 / 4
    assert metrics.expert_tokens_most == pytest.approx(skew * metrics.expert_tokens_mean, rel=tolerance)
    assert trial.result().state is TrialState.MEASURED


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
    ],
)
def test_experts_have_the_loads_that_were_asked_for(start, layout, routing, skew):
    expect(start(spec_of(layout, routing)), skew)


def test_a_router_left_alone_loads_experts_unevenly(start):
    trial = start(spec_of(ONE, "learned"))
    assert not any(trial.wait()), trial.logs()
    metrics = trial.outcome().metrics
    assert metrics.expert_tokens_most > 1.1 * metrics.expert_tokens_mean


def test_loads_that_were_not_asked_for_are_no_result(start):
    trial = start(spec_of(ONE, "balanced"), program=faulty("leave_the_choice_of_experts_to_the_router"))
    trial.wait()
    outcome = trial.outcome()
    assert outcome.reason is FailureReason.RESULT_INVALID
    assert "times the mean of 32; measure.routing is balanced" in outcome.excerpt


PACKAGES = {
    MEGATRON_CORE: replace(DP2, engine=MEGATRON_CORE, zero_stage=1, activation_checkpointing="full", **EP2),
    TORCHTITAN: replace(
        DP2,
        engine=TORCHTITAN,
        attention_kernel="flex",
        tensor_parallel=2,
        sequence_parallel=True,
        zero_stage=2,
        activation_checkpointing="full",
        **EP2,
    ),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(MEGATRON_CORE, marks=needs_megatron), pytest.param(TORCHTITAN, marks=needs_torchtitan)],
)
def begin(request, tmp_path_factory):
    from tests.trials.train.trial_processes import start_trial

    with closing(WarmRanks(request.param)) as warm:

        def start_here(routing: str) -> RunningTrial:
            folder = tmp_path_factory.mktemp("trial")
            return start_trial(folder, spec_of(PACKAGES[request.param], routing), warm=warm)

        yield start_here


@pytest.mark.walks
@pytest.mark.parametrize(("routing", "skew"), [("balanced", 1.0), ("skewed(1.5)", 1.5)])
def test_so_they_have_by_engines_that_distribute_them(begin: Callable[[str], RunningTrial], routing, skew):
    trial = begin(routing)
    is_drawn = trial.spec.layout.engine == MEGATRON_CORE and routing == "balanced"
    expect(trial, skew, tolerance=0.2 if is_drawn else 0.0)
