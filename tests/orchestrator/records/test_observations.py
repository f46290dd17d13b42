"""A search's trials as rows of a measured table, and the reasons for leaving one out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.records.observations import measured_table, observed_trials, write_measured_table
from search_spaces.layouts.layout import Layout
from search_spaces.tables.benchmark_problem import problem_for, problems_in
from search_spaces.tables.measured_table import parse_table
from tests.orchestrator.past_searches import failed, layouts, measured, past, pruned, spec_in
from trials.files.folders import SearchFolder
from trials.trial import FailureReason, Trial, TrialKind


@pytest.fixture
def spec(tmp_path):
    return spec_in(tmp_path)


def test_a_trial_that_ran_is_a_row_with_its_times_and_its_place(spec):
    (row,) = observed_trials(past(spec, measured("t0001", layouts()[1])), spec).rows
    assert (row.outcome, row.step_time_s, row.step_time_p95_s, row.peak_memory_gib) == ("ok", 0.5, 0.6, 0.25)
    assert (row.recorded_duration_s, row.queue_wait_s) == (30, 12)
    assert (row.search_id, row.trial, row.kind, row.source) == ("past-aaaaaa", "t0001", "search", "parlay")
    assert (row.model, row.cluster, row.global_batch_size, row.layout) == (spec.model, spec.cluster, 8, layouts()[1])
    assert row.failure_reason is None


@pytest.mark.parametrize(
    ("reason", "accelerator", "outcome"),
    [
        (FailureReason.GPU_OOM, "cpu", "oom"),
        (FailureReason.HOST_OOM, "cpu", "oom"),
        (FailureReason.HOST_OOM, "a100-40gb", "failed"),  # says nothing of the device's memory
        (FailureReason.HANG, "cpu", "failed"),
    ],
)
def test_a_failure_that_may_be_the_layouts_is_a_row_with_its_reason(tmp_path, reason, accelerator, outcome):
    spec = spec_in(tmp_path, f"cluster.accelerator={accelerator}")
    (row,) = observed_trials(past(spec, failed("t0001", layouts()[0], reason)), spec).rows
    assert (row.outcome, row.failure_reason, row.step_time_s) == (outcome, reason.value, None)


def test_what_says_nothing_of_the_layout_is_counted_by_its_reason(spec):
    nothing = ["cancelled_by_user", "cancelled_by_search", "node_failure", "job_lost", "job_lost"]
    ended = [failed(f"t{n:04}", layouts()[0], FailureReason(reason)) for n, reason in enumerate(nothing, 1)]
    unstarted = Trial("t0098", layouts()[1])
    given_up = replace(unstarted, trial="t0099", state=ended[0].state, reason=FailureReason.CANCELLED_BY_SEARCH)
    found = observed_trials(past(spec, *ended, unstarted, given_up), spec)
    assert found.rows == ()
    assert found.left_out == dict.fromkeys(nothing, 1) | {"job_lost": 2, "cancelled_by_search": 2, "in_flight": 1}


def test_a_pruned_trial_ran_at_what_its_steps_took_and_says_so(spec):
    trial = pruned("t0001", layouts()[0], step_time_s=0.9, tokens_per_sec=142.2, tokens_per_sec_high=150.0)
    (row,) = observed_trials(past(spec, trial), spec).rows
    assert (row.outcome, row.step_time_s, row.failure_reason) == ("ok", 0.9, "pruned")
    found = observed_trials(past(spec, pruned("t0001", layouts()[0])), spec)
    assert (found.rows, found.left_out) == ((), {"pruned": 1})


def test_a_suspect_run_is_left_out_where_another_run_of_its_layout_is_not(spec):
    first, other = layouts()[:2]
    suspect = measured("t0001", first, flags=("suspect_node",))
    again = replace(measured("t0002", first), kind=TrialKind.REPEAT)
    alone = measured("t0003", other, flags=("suspect_node",))
    found = observed_trials(past(spec, suspect, again, alone), spec)
    assert [(row.trial, row.kind) for row in found.rows] == [("t0002", "repeat"), ("t0003", "search")]
    assert found.left_out == {"suspect": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("step_time_s", value) for value in (math.nan, -0.5, 0.0, None, "0.5", True, 1e300, 1e-200)),
        *(("peak_memory_gib", value) for value in (math.inf, -1)),
    ],
)
def test_numbers_that_cannot_be_are_left_out(spec, field, value):
    wrong, good = measured("t0001", layouts()[0], **{field: value}), measured("t0002", layouts()[1])
    found = observed_trials(past(spec, wrong, good), spec)
    assert ([row.trial for row in found.rows], found.left_out) == (["t0002"], {"invalid": 1})


def test_a_clock_that_differs_by_a_moment_is_no_negative_time(spec):
    trial = measured("t0001", layouts()[0])
    early = replace(trial.attempts[0], started_at=trial.attempts[0].submitted_at - 0.5)
    (row,) = observed_trials(past(spec, trial.with_attempt(early)), spec).rows
    assert row.queue_wait_s == 0


def test_the_table_is_read_back_as_the_searchs_closed_problem(spec):
    trials = (
        measured("t0001", layouts()[0]),
        failed("t0002", layouts()[1], FailureReason.GPU_OOM),
        failed("t0003", layouts()[2], FailureReason.JOB_LOST),
    )
    search = past(spec, *trials)
    observed = observed_trials(search, spec)
    text = measured_table(observed, search)
    assert text.startswith("# search past-aaaaaa, completed: 2 of 3 trials\n# left out: 1 job_lost\n")
    rows = parse_table(text, "measured.csv")
    assert rows == observed.rows
    assert problem_for(rows, spec.model, spec.cluster, 8).layouts == (layouts()[0], layouts()[1])


def test_trials_on_fewer_nodes_or_of_another_batch_are_problems_of_their_own(tmp_path):
    spec = spec_in(tmp_path, "cluster.num_nodes=2")
    wide = Layout(num_nodes=2, data_parallel=4, micro_batch_size=2)
    other = Layout(data_parallel=2, micro_batch_size=2)
    search = past(spec, measured("t0001", wide), measured("t0002", layouts()[0]), measured("t0003", other))
    rows = observed_trials(search, spec).rows
    assert len(problems_in(rows)) == 3
    assert [row.cluster.num_nodes for row in rows] == [2, 1, 1]
    assert [row.global_batch_size for row in rows] == [8, 8, 4]


def test_a_folder_that_cannot_take_the_table_ends_no_search(spec, tmp_path, logged):
    search = past(spec, measured("t0001", layouts()[0]))
    write_measured_table(SearchFolder(Path("/proc/past-aaaaaa")), spec, search)
    assert "parlay export past-aaaaaa" in logged[0]
    write_measured_table(SearchFolder(tmp_path), spec, search)
    assert len(logged) == 1
    assert (tmp_path / "measured.csv").read_text() == measured_table(observed_trials(search, spec), search)
