from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.base import LaunchRefused, LaunchRequest
from orchestrator.launchers.simulated import SimulatedLauncher
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import Observation
from tests.orchestrator.launchers.attempts import (
    LAYOUT,
    MODEL,
    attempt_request,
    poll_one,
    result_of,
    wait_until_ended,
    with_spec,
)
from trials.attempt_result import AttemptResult, Liveness
from trials.trial import FailureReason, Flag, Outcome, TrialState

START = 1_000_000_000.0
H100S = Cluster(ACCELERATORS["h100-80gb"], 2, 1)
ROW = Observation(
    problem="tiny-2gpu",
    source="playbook",
    model_name="tiny",
    model=MODEL,
    cluster=H100S,
    global_batch_size=LAYOUT.global_batch_size,
    layout=LAYOUT,
    outcome="ok",
    step_time_s=0.5,
    peak_memory_gib=12.5,
)
OTHER = replace(LAYOUT, micro_batch_size=1, grad_accum_steps=4)


def request_for(root: Path, layout: Layout = LAYOUT, trial: str = "t0001", **changes: object) -> LaunchRequest:
    return with_spec(attempt_request(root, trial=trial, **changes), layout=layout, accelerator="h100-80gb")


def play(root: Path, *rows: Observation, layout: Layout = LAYOUT) -> AttemptResult:
    launcher, request = SimulatedLauncher(rows, now=START), request_for(root, layout)
    launcher.launch(request)
    return result_of(request, wait_until_ended(launcher, request))


def outcome_of(result: AttemptResult) -> Outcome:
    assert result.outcome is not None
    return result.outcome


def test_a_row_that_ran_is_measured_with_what_the_table_knows(tmp_path: Path) -> None:
    result = play(tmp_path, ROW)
    assert result.state is TrialState.MEASURED
    outcome = outcome_of(result)
    measured = outcome.measured
    assert (measured.step_time_s, measured.peak_memory_gib) == (0.5, 12.5)
    assert measured.tokens_per_sec == LAYOUT.global_batch_size * MODEL.seq_length / 0.5
    assert measured.tokens_per_sec_per_gpu == measured.tokens_per_sec / 2
    assert measured.loss_first is None
    assert outcome.fingerprint == {"recorded": "playbook"}


def test_a_row_of_an_emulated_device_is_flagged_as_its_trial_would_be(tmp_path: Path) -> None:
    cpu, layout = Cluster(ACCELERATORS["cpu"], 2, 1), replace(LAYOUT, engine="megatron-core")
    request = with_spec(request_for(tmp_path, layout), accelerator="cpu")
    launcher = SimulatedLauncher([replace(ROW, cluster=cpu, layout=layout)], now=START)
    launcher.launch(request)
    assert outcome_of(result_of(request, wait_until_ended(launcher, request))).flags == (Flag.EMULATED_DEVICE,)
    assert outcome_of(play(tmp_path / "gpu", replace(ROW, layout=layout), layout=layout)).flags == ()


def test_a_step_measured_once_has_the_stated_spread(tmp_path: Path) -> None:
    measured = outcome_of(play(tmp_path, ROW)).measured
    assert (measured.step_time_low_s, measured.step_time_high_s) == pytest.approx((0.495, 0.505))


def test_repeats_give_median_and_interval(tmp_path: Path) -> None:
    rows = [replace(ROW, step_time_s=seconds) for seconds in (0.5, 0.9, 0.6)]
    measured = outcome_of(play(tmp_path, *rows, replace(ROW, layout=OTHER, step_time_s=9.0))).measured
    assert (measured.step_time_low_s, measured.step_time_s, measured.step_time_high_s) == (0.5, 0.6, 0.9)


def test_out_of_memory_is_reported_as_such(tmp_path: Path) -> None:
    result = play(tmp_path, replace(ROW, outcome="oom", step_time_s=None))
    assert (result.state, result.reason) == (TrialState.FAILED, FailureReason.GPU_OOM)


def test_failures_of_unknown_cause_are_not_alike(tmp_path: Path) -> None:
    failed = replace(ROW, outcome="failed", step_time_s=None)
    rows = [failed, replace(failed, layout=OTHER)]
    results = [play(tmp_path / str(i), *rows, layout=row.layout) for i, row in enumerate(rows)]
    assert [result.reason for result in results] == [FailureReason.SCRIPT_ERROR] * 2
    assert results[0].excerpt != results[1].excerpt


@pytest.mark.parametrize(
    ("recorded", "reason"), [("host_oom", FailureReason.HOST_OOM), ("cosmic rays", FailureReason.SCRIPT_ERROR)]
)
def test_a_recorded_reason_is_kept_where_it_is_one_of_ours(
    tmp_path: Path, recorded: str, reason: FailureReason
) -> None:
    result = play(tmp_path, replace(ROW, outcome="failed", step_time_s=None, failure_reason=recorded))
    assert result.reason is reason


def test_an_attempt_takes_a_minute_and_fifteen_steps_after_its_wait_in_the_queue(tmp_path: Path) -> None:
    launcher, request = SimulatedLauncher([ROW], queue_wait_s=30.0, now=START), request_for(tmp_path)
    launcher.launch(request)
    assert not poll_one(launcher, request).started
    launcher.wait(0.5)
    assert (launcher.now(), poll_one(launcher, request).started) == (START + 30, True)
    assert not request.folder.outcome().exists()
    launcher.wait(0.5)
    status = poll_one(launcher, request)
    assert (status.liveness, status.started_at, status.ended_at) == (Liveness.ENDED, START + 30, START + 97.5)
    assert launcher.now() == START + 97.5


def test_what_a_row_itself_recorded_counts_before_the_defaults(tmp_path: Path) -> None:
    row = replace(ROW, recorded_duration_s=10.0, queue_wait_s=7.0)
    launcher, request = SimulatedLauncher([row], queue_wait_s=30.0, now=START), request_for(tmp_path)
    launcher.launch(request)
    status = wait_until_ended(launcher, request)
    assert (status.started_at, status.ended_at) == (START + 7, START + 17)


def test_the_clock_stops_at_each_change_and_else_goes_on_as_asked(tmp_path: Path) -> None:
    launcher = SimulatedLauncher([ROW, replace(ROW, layout=OTHER, step_time_s=1.0)], now=START)
    for layout, trial in ((LAYOUT, "t0001"), (OTHER, "t0002")):
        launcher.launch(request_for(tmp_path, layout, trial))
    moments = []
    for _ in range(3):
        launcher.wait(5)
        moments.append(launcher.now() - START)
    assert moments == [67.5, 75.0, 80.0]


def test_a_layout_the_table_does_not_know_stops_the_search(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused, match=r"no row of .*ga4.* its 1 layouts"):
        SimulatedLauncher([ROW]).launch(request_for(tmp_path, OTHER))


def test_a_workload_the_table_does_not_know_stops_the_search(tmp_path: Path) -> None:
    request = with_spec(request_for(tmp_path), model=replace(MODEL, num_layers=4))
    with pytest.raises(LaunchRefused, match="no row of this model"):
        SimulatedLauncher([ROW]).launch(request)


def test_a_cancelled_attempt_ends_now_and_leaves_no_outcome(tmp_path: Path) -> None:
    launcher, request = SimulatedLauncher([ROW], now=START), request_for(tmp_path)
    launcher.launch(request)
    launcher.cancel([request.spec.attempt_key])
    launcher.wait(1000)
    assert poll_one(launcher, request).ended_at == START
    assert not request.folder.outcome().exists()


def test_an_adopted_attempt_ends_when_it_would_have(tmp_path: Path) -> None:
    request = request_for(tmp_path)
    SimulatedLauncher([ROW], now=START).launch(request)
    launcher = SimulatedLauncher([ROW], now=START - 500)
    launcher.adopt({request.spec.attempt_key: request})
    assert launcher.now() == START
    assert wait_until_ended(launcher, request).ended_at == START + 67.5


def test_the_clock_of_a_search_that_goes_on_begins_where_it_is_told_also_with_nothing_in_flight(tmp_path: Path) -> None:
    first, request = SimulatedLauncher([ROW], now=START), request_for(tmp_path)
    first.launch(request)
    wait_until_ended(first, request)
    launcher, later = SimulatedLauncher([ROW], now=first.now()), request_for(tmp_path, trial="t0002")
    launcher.adopt({})
    launcher.launch(later)
    assert launcher.now() == START + 67.5
    assert wait_until_ended(launcher, later).ended_at == START + 2 * 67.5
