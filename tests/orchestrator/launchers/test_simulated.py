"""Simulated launcher: outcomes and times of a measured table's rows."""

from __future__ import annotations

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
from trials.trial import FailureReason, Flag, TrialState

START = 1_000_000_000.0
H100 = "h100-80gb"
ROW = Observation(
    problem="tiny-2gpu",
    source="playbook",
    model_name="tiny",
    model=MODEL,
    cluster=Cluster(ACCELERATORS[H100], 2, 1),
    global_batch_size=LAYOUT.global_batch_size,
    layout=LAYOUT,
    outcome="ok",
    step_time_s=0.5,
    peak_memory_gib=12.5,
)
FAILED = replace(ROW, outcome="failed", step_time_s=None)
OTHER = replace(LAYOUT, micro_batch_size=1, grad_accum_steps=4)


def request_for(root: Path, layout: Layout = LAYOUT, trial: str = "t0001", accelerator: str = H100) -> LaunchRequest:
    return with_spec(attempt_request(root, trial=trial), layout=layout, accelerator=accelerator)


def play(root: Path, *rows: Observation, layout: Layout = LAYOUT, accelerator: str = H100) -> AttemptResult:
    launcher, request = SimulatedLauncher(rows, now=START), request_for(root, layout, accelerator=accelerator)
    launcher.launch(request)
    return result_of(request, wait_until_ended(launcher, request))


def test_a_row_that_ran_is_measured_with_what_the_table_knows(tmp_path):
    result = play(tmp_path, ROW)
    assert result.state is TrialState.MEASURED
    measured = result.outcome.measured
    assert (measured.step_time_s, measured.peak_memory_gib, measured.loss_first) == (0.5, 12.5, None)
    assert measured.tokens_per_sec == LAYOUT.global_batch_size * MODEL.seq_length / 0.5
    assert measured.tokens_per_sec_per_gpu == measured.tokens_per_sec / 2
    assert result.outcome.fingerprint == {"recorded": "playbook"}


@pytest.mark.parametrize(("accelerator", "flags"), [("cpu", (Flag.EMULATED_DEVICE,)), (H100, ())])
def test_a_row_of_an_emulated_device_is_flagged_as_its_trial_would_be(tmp_path, accelerator, flags):
    layout = replace(LAYOUT, engine="megatron-core")
    row = replace(ROW, cluster=Cluster(ACCELERATORS[accelerator], 2, 1), layout=layout)
    assert play(tmp_path, row, layout=layout, accelerator=accelerator).outcome.flags == flags


@pytest.mark.parametrize(
    ("seconds", "expected"), [((0.5,), (0.495, 0.5, 0.505)), ((0.5, 0.9, 0.6), (0.5, 0.6, 0.9))], ids=["one", "three"]
)
def test_a_step_measured_once_has_the_stated_spread_and_repeats_give_median_and_interval(tmp_path, seconds, expected):
    rows = [replace(ROW, step_time_s=each) for each in seconds]
    measured = play(tmp_path, *rows, replace(ROW, layout=OTHER, step_time_s=9.0)).outcome.measured
    found = (measured.step_time_low_s, measured.step_time_s, measured.step_time_high_s)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (replace(FAILED, outcome="oom"), FailureReason.GPU_OOM),
        (FAILED, FailureReason.SCRIPT_ERROR),
        (replace(FAILED, failure_reason="host_oom"), FailureReason.HOST_OOM),
        (replace(FAILED, failure_reason="cosmic rays"), FailureReason.SCRIPT_ERROR),
    ],
)
def test_a_failure_has_the_recorded_reason_where_it_is_one_of_ours(tmp_path, row, reason):
    result = play(tmp_path, row)
    assert (result.state, result.reason) == (TrialState.FAILED, reason)


def test_failures_of_unknown_cause_are_not_alike(tmp_path):
    rows = [FAILED, replace(FAILED, layout=OTHER)]
    one, other = (play(tmp_path / str(i), *rows, layout=row.layout) for i, row in enumerate(rows))
    assert one.excerpt != other.excerpt


def test_an_attempt_takes_a_minute_and_fifteen_steps_after_its_wait_in_the_queue_unless_its_row_knows_better(tmp_path):
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
    row = replace(ROW, recorded_duration_s=10.0, queue_wait_s=7.0)
    launcher, request = SimulatedLauncher([row], queue_wait_s=30.0, now=START), request_for(tmp_path, trial="t0002")
    launcher.launch(request)
    status = wait_until_ended(launcher, request)
    assert (status.started_at, status.ended_at) == (START + 7, START + 17)


def test_the_clock_stops_at_each_change_and_else_goes_on_as_asked(tmp_path):
    launcher = SimulatedLauncher([ROW, replace(ROW, layout=OTHER, step_time_s=1.0)], now=START)
    for layout, trial in ((LAYOUT, "t0001"), (OTHER, "t0002")):
        launcher.launch(request_for(tmp_path, layout, trial))
    moments = []
    for _ in range(3):
        launcher.wait(5)
        moments.append(launcher.now() - START)
    assert moments == [67.5, 75.0, 80.0]


def test_a_layout_or_workload_that_the_table_does_not_know_stops_the_search(tmp_path):
    with pytest.raises(LaunchRefused, match=r"no row of .*ga4.* its 1 layouts"):
        SimulatedLauncher([ROW]).launch(request_for(tmp_path, OTHER))
    with pytest.raises(LaunchRefused, match="no row of this model"):
        SimulatedLauncher([ROW]).launch(with_spec(request_for(tmp_path), model=replace(MODEL, num_layers=4)))


def test_an_adopted_attempt_ends_when_it_would_have_and_the_next_begins_then(tmp_path):
    request, later = request_for(tmp_path), request_for(tmp_path, trial="t0002")
    SimulatedLauncher([ROW], now=START).launch(request)
    launcher = SimulatedLauncher([ROW], now=START - 500)
    launcher.adopt({request.spec.attempt_key: request})
    assert launcher.now() == START
    assert wait_until_ended(launcher, request).ended_at == START + 67.5
    launcher.launch(later)
    assert wait_until_ended(launcher, later).ended_at == START + 2 * 67.5
