"""Search loop on a simulated clock: order of trials, and the best layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.samplers.base import GridSampler
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script
from tests.rig import LAYOUTS
from trials.analysis.early_stopping import read_incumbent
from trials.attempt_result import LaunchStatus, Liveness
from trials.ledger.events import EndReason, SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import TrialState

pytestmark = pytest.mark.slow


def test_every_layout_is_measured_once_and_the_fastest_is_best_as_the_ledger_tells(rig):
    rig.callbacks = DriverCallbacks(predict=lambda layout: {"step_time_s": 0.5 * LAYOUTS.index(layout)})
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)
    assert [t.layout for t in search.trials] == list(LAYOUTS)
    assert all(t.state is TrialState.MEASURED and len(t.attempts) == 1 for t in search.trials)
    assert [trial.prediction for trial in search.trials] == [{"step_time_s": 0.5 * n} for n in range(len(LAYOUTS))]
    assert search.trial(search.best_trial).layout == LAYOUTS[-1]
    assert LedgerReader(f"sqlite:///{rig.path / 'ledger.db'}").search(search.search_id) == search


def test_a_running_trial_finds_in_best_json_what_it_has_to_reach(rig):
    search = rig.run()
    last = rig.launcher.jobs[rig.launcher.launched[-1]].request
    other = replace(last.spec, trial="t0099")
    incumbent = read_incumbent(other, last.folder.best, {})
    tokens = other.global_batch_size * other.model.seq_length
    assert incumbent.trial == search.best_trial
    # 8 % slower than its one run: what runs differ by.
    assert incumbent.step_time_s == pytest.approx(tokens / 1800.0 * 1.09, rel=0.01)


def test_the_baseline_is_measured_first_and_once_and_neither_it_nor_what_is_measured_again_stops_as_pruned(rig):
    rig.limits, rig.first = replace(rig.limits, finalists=1, finalist_repeats=1), (LAYOUTS[4],)
    search = rig.run()
    assert search.trials[0].layout == LAYOUTS[4]
    specs = [request.spec for request in rig.launcher.requests]
    searched = {spec.layout.key: spec.measure.early_stopping for spec in specs if spec.kind.value == "search"}
    assert searched == {layout.key: layout != LAYOUTS[4] for layout in LAYOUTS}
    assert [spec.measure.early_stopping for spec in specs if spec.kind.value == "repeat"] == [False, False]


@pytest.mark.fault(43)
@pytest.mark.parametrize("most", [None, 4], ids=["the space", "a sampler that repeats itself"])
def test_what_has_run_out_of_layouts_ends_the_search(rig, monkeypatch, most):
    ask = GridSampler.ask
    if most is not None:
        again = lambda self, count, history: [*ask(self, most, []), *ask(self, most, [])]  # noqa: E731
        monkeypatch.setattr(GridSampler, "ask", again)
    rig.limits = replace(rig.limits, max_trials=50)
    search = rig.run()
    assert (len(search.trials), search.end_reason) == (most or 9, EndReason.SPACE_EXHAUSTED)


@pytest.mark.parametrize(
    ("ending", "job_id", "words"),
    [
        (LaunchStatus(Liveness.UNKNOWN), None, "cancelled before its launch"),
        (LaunchStatus(Liveness.ENDED), None, "cancelled before its launch"),
        (LaunchStatus(Liveness.ENDED, job_id="7", detail="ended at once"), "7", "ended at once"),
    ],
)
def test_what_had_no_slot_yet_is_cancelled_without_a_launch_unless_it_had_a_job_all_the_same(
    rig, monkeypatch, ending, job_id, words
):
    asked = iter([False, True])
    rig.limits, rig.callbacks = Limits(1, 1), DriverCallbacks(cancel_requested=lambda: next(asked))
    rig.launcher.meets = [None]
    monkeypatch.setattr(rig.launcher, "poll", lambda keys: dict.fromkeys(keys, ending))
    [attempt] = rig.run().trials[0].attempts
    assert (attempt.state, attempt.job_id, attempt.excerpt) == (TrialState.CANCELLED, job_id, words)


def test_an_attempt_that_began_and_ended_between_two_looks_is_known_by_its_step(rig, monkeypatch):
    """Steps of a job are known only once they run."""
    status = type(rig.launcher)._status
    seen = lambda self, key: replace(status(self, key), job_id="job-1.4")  # noqa: E731
    monkeypatch.setattr(type(rig.launcher), "_status", seen)
    rig.script, rig.limits = lambda spec, restart: Script(duration_s=0.0), Limits(1, 1)
    [attempt] = rig.run().trials[0].attempts
    assert attempt.job_id == "job-1.4"
