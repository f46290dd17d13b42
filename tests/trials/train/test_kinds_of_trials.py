"""Trials on a token file, with experts, and without late imports: real ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.token_files import write_tokens
from tests.trials.train.trial_processes import MODEL, RULES, make_spec
from trials.measurement.step_log import read_metrics
from trials.trial import TrialSpec, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
DP2 = replace(ONE, data_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2)
SMALL_DP2 = replace(DP2, micro_batch_size=1)


def spec_on(path, layout: Layout, **fields) -> TrialSpec:
    return make_spec(layout, trainer={"kind": "parlay", "data": {"kind": "tokens", "path": str(path)}}, **fields)


def test_losses_are_the_same_for_every_layout_and_waits_for_data_are_part_of_the_steps(start, tmp_path):
    write_tokens(tmp_path / "tokens.bin", [i * i % 61 for i in range(1001)])
    losses = []
    for number, layout in enumerate((TP2, SMALL_DP2, replace(PP2, engine="deepspeed")), 1):
        trial = start(spec_on(tmp_path / "tokens.bin", layout, trial=f"t000{number}"))
        assert trial.wait() == [0, 0], trial.logs()
        assert trial.result().state is TrialState.MEASURED
        records, metrics = read_metrics(trial.folder.metrics()), trial.outcome().measured
        assert 0 <= metrics.data_wait_s < metrics.step_time_s
        assert all(record.data_wait_s < record.step_time_s for record in records)
        losses.append([record.loss for record in records][:10])
    assert losses[0][-1] < losses[0][0] - 0.01
    assert losses[1:] == [pytest.approx(losses[0], abs=1e-5)] * 2


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
SPLIT = replace(TP2, expert_tensor_parallel=2, activation_checkpointing="full")


def spec_of(layout: Layout, routing: str) -> Any:
    return make_spec(layout, model=EXPERTS, measure=replace(RULES, routing=routing))


@pytest.mark.parametrize(
    ("layout", "routing", "skew"),
    [
        (SPLIT, "balanced", 1.0),
        pytest.param(replace(ONE, pipeline_parallel=2), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        pytest.param(replace(DP2, zero_stage=3), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        (replace(DP2, zero_stage=3, engine="deepspeed"), "skewed(1.5)", 1.5),
        pytest.param(replace(SPLIT, engine="deepspeed"), "balanced", 1.0, marks=pytest.mark.walks),
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
