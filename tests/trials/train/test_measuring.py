"""A trial's measurement, its early end, its tokens and its experts: real ranks as a launcher starts them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.datasets import write_tokens
from tests.trials.train.trial_processes import ENDLESS, MODEL, RULES, WITH_EXPERTS, best_of, faulty, make_spec
from trials.diagnostics.parity_models import SHAPES
from trials.files.folders import SearchFolder, read_json, read_lines, write_json
from trials.measurement.step_log import StepPhase, StepRecord
from trials.outcome_types import TimeParts
from trials.trial import FailureReason, TrialKind, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2)
DP2 = replace(ONE, data_parallel=2)
EXPERTS = replace(DP2, expert_parallel=2, engine="megatron-core")
CONTEXT = replace(ONE, context_parallel=2, context_transport="all_gather", zero_stage=3, engine="torchtitan")
CONTEXT = replace(CONTEXT, attention_kernel="flex")
LONG = replace(PP2, micro_batch_size=1, grad_accum_steps=24, engine="deepspeed")
PARTS = {*TimeParts.__annotations__}


@pytest.fixture
def search_folder(tmp_path: Path) -> SearchFolder:
    """The search of a test's trials."""
    folder = SearchFolder(tmp_path / make_spec(ONE).search_id)
    folder.path.mkdir()
    return folder


def test_a_trial_that_cannot_be_the_best_ends_itself_with_what_it_saw(start, search_folder):
    spec = make_spec(TP2, measure=ENDLESS)
    write_json(search_folder.best, best_of(spec, 1e12))
    trial = start(spec)
    assert trial.wait() == [0, 0], trial.logs()
    outcome = trial.outcome()
    assert (outcome.reason, outcome.phase, outcome.rank) == (FailureReason.PRUNED, "measured", 0)
    assert "t0009" in outcome.excerpt
    assert outcome.measured.measured_steps >= 6
    assert 0 < outcome.measured.tokens_per_sec <= outcome.measured.tokens_per_sec_high < 1e12
    assert trial.result().reason is FailureReason.PRUNED


@pytest.mark.parametrize("kind", [TrialKind.REPEAT, TrialKind.REPLAY])
def test_what_is_measured_again_is_measured_whole(start, search_folder, kind):
    rules = replace(RULES, finalist_steps=30)
    spec = make_spec(ONE, kind=kind, measure=rules)
    write_json(search_folder.best, best_of(spec, 1e12))
    trial = start(spec)
    assert trial.wait() == [0], trial.logs()
    assert trial.result().state is TrialState.MEASURED
    measured_s = [
        r.step_time_s for r in read_lines(StepRecord, trial.folder.metrics()) if r.phase is StepPhase.MEASURED
    ]
    assert len(measured_s) == (30 if kind is TrialKind.REPEAT else RULES.min_steps)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("layout", "short", "long"),
    [(replace(ONE, micro_batch_size=1, grad_accum_steps=12), 2, 4), pytest.param(LONG, 4, 8, marks=pytest.mark.walks)],
    ids=["torch", "deepspeed-pipeline"],
)
def test_a_long_step_is_measured_by_short_ones_and_proven_by_those(start, layout, short, long):
    rules = replace(RULES, min_steps=12, max_steps=12)
    trial = start(make_spec(layout, measure=rules), program=faulty("take_every_step_for_a_long_one"))
    assert set(trial.wait()) == {0}, trial.logs()
    assert trial.result().state is TrialState.MEASURED
    outcome = trial.outcome()
    assert "extrapolated" in outcome.flags
    assert outcome.proof["micro_batches_per_step"] == [short, long]
    records = read_lines(StepRecord, trial.folder.metrics())
    assert [r.samples for r in records[:5]] == [short, short, long, short, long]
    assert outcome.proof["samples_per_data_rank"] == [sum(r.samples for r in records)]
    measured, full = outcome.measured, layout.grad_accum_steps
    short_s, long_s = (
        [r.step_time_s for r in records if r.phase is StepPhase.MEASURED and r.samples == count]
        for count in (short, long)
    )
    slopes = [(after - before) / (long - short) for before, after in zip(short_s, long_s, strict=True)]
    full_s = [before + slope * (full - short) for before, slope in zip(short_s, slopes, strict=True)]
    assert measured.step_time_s == pytest.approx(median(full_s))
    assert measured.tokens_per_sec == pytest.approx(full * 16 / measured.step_time_s)
    assert measured.step_time_s == pytest.approx(0.05 * full, rel=0.2)
    assert measured.measured_steps == len(short_s) + len(long_s) == 24


def test_host_memory_that_grows_is_a_finding_and_names_the_step_at_which_the_node_is_full(start):
    trial = start(make_spec(ONE), program=faulty("leak_four_mib_a_step"))
    assert trial.wait() == [0], trial.logs()
    outcome = trial.outcome()
    assert "host_memory_growth" in outcome.flags
    assert outcome.measured.host_memory_slope_mib_per_step == pytest.approx(4.0, rel=0.2)
    node_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    assert len(outcome.step_times_s) < outcome.measured.host_memory_full_at_step < node_mib


@pytest.mark.fault(38)
@pytest.mark.alone
@pytest.mark.parametrize(
    "layout",
    [DP2, *(pytest.param(one, marks=pytest.mark.walks) for one in (TP2, replace(DP2, zero_stage=3)))],
    ids=["data", "tensor", "torch-zero-3"],
)
def test_a_rank_that_is_slow_is_named_with_its_node(start, layout):
    trial = start(make_spec(layout, gpus_per_node=1), program=faulty("be_slow_in_rank_1"))
    assert trial.wait() == [0, 0], trial.logs()
    outcome = trial.outcome()
    assert {"straggler", "suspect_node"} <= set(outcome.flags)
    slowest = outcome.slowest_rank
    assert (slowest["rank"], slowest["host"], slowest["steps"]) == (1, "slow-node", 8)
    assert (slowest["stragglers"], slowest["straggler_hosts"]) == ([1], ["slow-node"])
    assert 0 < slowest["peers_compute_s"] < slowest["compute_s"] <= slowest["compute_p95_s"]
    assert slowest["compute_s"] > 0.03
    ranks = read_json(trial.folder.rank_times())["ranks"]
    assert [(one["rank"], one["host"]) for one in ranks] == [(0, "other-node"), (1, "slow-node")]
    assert trial.result().state is TrialState.MEASURED


def test_a_trial_is_not_pruned_while_a_straggler_holds_it_up(start, search_folder):
    spec = make_spec(TP2, gpus_per_node=1, measure=replace(RULES, min_steps=10, max_steps=10))
    write_json(search_folder.best, best_of(spec, 1e12))
    trial = start(spec, program=faulty("be_slow_in_rank_1"))
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.result().state is TrialState.MEASURED


@pytest.mark.parametrize(
    ("layout", "shown"),
    [
        (TP2, {"tensor"}),
        (replace(PP2, grad_accum_steps=4), {"pipeline", "bubble"}),
        pytest.param(replace(DP2, zero_stage=1, engine="deepspeed"), {"data_parallel"}, marks=pytest.mark.walks),
        pytest.param(replace(DP2, zero_stage=3), {"data_parallel"}, marks=pytest.mark.walks),
        pytest.param(CONTEXT, {"context"}, marks=pytest.mark.nightly),
        pytest.param(EXPERTS, {"expert", "data_parallel"}, marks=pytest.mark.walks),
    ],
    ids=["tensor", "pipeline", "deepspeed-zero-1", "torch-zero-3", "context", "experts"],
)
def test_on_request_the_time_of_a_step_is_divided_among_what_it_went_to(start, layout, shown):
    model = SHAPES[{CONTEXT: "qwen3-long", EXPERTS: "mixtral"}[layout]] if layout in (CONTEXT, EXPERTS) else MODEL
    fresh = {"warm": None} if layout.engine == "megatron-core" else {}  # it unpickles, which warm ranks refuse
    trial = start(make_spec(layout, model=model, measure=replace(RULES, profile=True)), **fresh)
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.result().state is TrialState.MEASURED
    outcome = trial.outcome()
    assert "profile_failed" not in outcome.flags, outcome.excerpt
    time_s = outcome.measured.time_s
    assert set(time_s) == PARTS
    assert sum(time_s.values()) == pytest.approx(outcome.measured.step_time_s)
    assert {part for part, seconds in time_s.items() if seconds > 0} == {"compute", "optimizer"} | shown


def test_a_profile_that_fails_leaves_the_measurement_as_it_is(start):
    spec = make_spec(TP2, measure=replace(RULES, profile=True))
    trial = start(spec, program=faulty("lose_rank_1_while_it_is_profiled"))
    assert trial.wait() == [1, 7], trial.logs()
    outcome = trial.outcome()
    assert "profile_failed" in outcome.flags
    assert outcome.excerpt
    assert outcome.measured.time_s is None
    assert trial.result().state is TrialState.MEASURED


def test_losses_are_the_same_for_every_layout_and_waits_for_data_are_part_of_the_steps(start, tmp_path):
    write_tokens(tmp_path / "tokens", [i * i % 61 for i in range(1001)])
    losses = []
    for number, layout in enumerate((TP2, replace(DP2, micro_batch_size=1), replace(PP2, engine="deepspeed")), 1):
        data = {"kind": "tokens", "path": str(tmp_path / "tokens")}
        trial = start(make_spec(layout, trial=f"t000{number}", trainer={"kind": "parlay", "data": data}))
        assert trial.wait() == [0, 0], trial.logs()
        assert trial.result().state is TrialState.MEASURED
        records, metrics = read_lines(StepRecord, trial.folder.metrics()), trial.outcome().measured
        assert 0 <= metrics.data_wait_s < metrics.step_time_s
        assert all(record.data_wait_s < record.step_time_s for record in records)
        losses.append([record.loss for record in records][:10])
    assert losses[0][-1] < losses[0][0] - 0.01
    assert losses[1:] == [pytest.approx(losses[0], abs=1e-5)] * 2


SPLIT = replace(TP2, expert_tensor_parallel=2, activation_checkpointing="full")


@pytest.mark.parametrize(
    ("layout", "routing", "skew"),
    [
        (SPLIT, "balanced", 1.0),
        pytest.param(PP2, "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        pytest.param(replace(DP2, zero_stage=3), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        (replace(DP2, zero_stage=3, engine="deepspeed"), "skewed(1.5)", 1.5),
        pytest.param(replace(SPLIT, engine="deepspeed"), "balanced", 1.0, marks=pytest.mark.walks),
        (ONE, "learned", None),
    ],
)
def test_experts_have_the_loads_that_were_asked_for_and_uneven_ones_by_a_router_left_alone(
    start, layout, routing, skew
):
    trial = start(make_spec(layout, model=WITH_EXPERTS, measure=replace(RULES, routing=routing)))
    assert not any(trial.wait()), trial.logs()
    metrics = trial.outcome().metrics
    assert trial.result().state is TrialState.MEASURED
    assert metrics.expert_tokens_mean == trial.spec.global_batch_size * MODEL.seq_length * 2 / 4
    assert metrics.expert_tokens_most > 1.1 * metrics.expert_tokens_mean or skew == 1.0
    assert skew is None or metrics.expert_tokens_most == skew * metrics.expert_tokens_mean
