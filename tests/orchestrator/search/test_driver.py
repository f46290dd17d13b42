"""Search loop on a simulated clock: order of trials, and the best layout."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.orchestrator.search.rig import LAYOUTS, speed_by_layout
from trials.analysis.early_stopping import read_incumbent
from trials.analysis.ranking import Objective, upper_bound_of
from trials.attempt_result import LaunchStatus, Liveness
from trials.ledger.events import EndReason, SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import FailureReason, TrialState

pytestmark = pytest.mark.slow


def test_every_layout_is_measured_once_and_the_fastest_is_best(rig):
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.MAX_TRIALS)
    assert [t.layout for t in search.trials] == list(LAYOUTS)
    assert all(t.state is TrialState.MEASURED and len(t.attempts) == 1 for t in search.trials)
    assert search.trial(search.best_trial).layout == LAYOUTS[-1]


def test_the_ledger_and_best_json_tell_what_the_driver_knows(rig):
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    assert LedgerReader(f"sqlite:///{rig.path / 'ledger.db'}").search(search.search_id) == search
    best = json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())
    assert (best["trial"], best["tokens_per_sec"]) == (search.best_trial, 1800.0)


def test_what_is_predicted_of_a_layout_stands_in_its_trial(rig):
    rig.callbacks = DriverCallbacks(predict=lambda layout: {"step_time_s": 0.5 * LAYOUTS.index(layout)})
    search = rig.open_driver().run()
    assert [trial.prediction for trial in search.trials] == [{"step_time_s": 0.5 * n} for n in range(len(LAYOUTS))]


def test_a_running_trial_finds_in_best_json_what_it_has_to_reach(rig):
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    last = rig.launcher.jobs[rig.launcher.launched[-1]].request
    other = replace(last.spec, trial="t0099")
    incumbent = read_incumbent(other, last.folder.best, {})
    tokens = other.global_batch_size * other.model.seq_length
    assert incumbent is not None
    assert incumbent.trial == search.best_trial
    # 8 % slower than its one run: what runs differ by.
    assert incumbent.step_time_s == pytest.approx(tokens / 1800.0 * 1.09, rel=0.01)


def test_the_baseline_and_what_is_measured_again_never_stop_as_pruned(rig):
    rig.limits = replace(rig.limits, finalists=1, finalist_repeats=1)
    rig.first = (LAYOUTS[4],)
    rig.open_driver().run()
    may_stop = {
        (job.request.spec.kind.value, job.request.spec.layout.key): job.request.spec.measure.early_stopping
        for job in rig.launcher.jobs.values()
    }
    searched = {key: may for (kind, key), may in may_stop.items() if kind == "search"}
    assert searched == {layout.key: layout != LAYOUTS[4] for layout in LAYOUTS}
    assert not any(may for (kind, _), may in may_stop.items() if kind == "repeat")


def test_a_pruned_trial_has_failed_and_keeps_what_it_saw_as_a_bound(rig):
    slow = Script(tokens_per_sec=500.0, reason=FailureReason.PRUNED, excerpt="500 tokens/s")
    rig.launcher.script = lambda spec: slow if spec.layout == LAYOUTS[3] else speed_by_layout(spec)
    search = rig.open_driver().run()
    trial = next(t for t in search.trials if t.layout == LAYOUTS[3])
    assert (trial.state, trial.reason, len(trial.attempts)) == (TrialState.FAILED, FailureReason.PRUNED, 1)
    assert trial.last_attempt.excerpt == "500 tokens/s"
    assert upper_bound_of(trial, Objective.TOKENS_PER_SEC) == pytest.approx(502.5)
    assert search.end_reason is EndReason.MAX_TRIALS


def test_parallel_trials_are_kept_in_flight_and_never_more(rig):
    rig.limits = replace(rig.limits, parallel_trials=3)
    rig.open_driver().run()
    assert rig.launcher.most_in_flight == 3


def test_a_freed_slot_is_filled_without_waiting_for_the_others(rig):
    rig.launcher.script = lambda spec: Script(duration_s=500.0 if spec.trial == "t0001" else 10.0)
    rig.open_driver().run()
    slow = rig.launcher.jobs[rig.launcher.launched[0]]
    others = [job.started_at for key, job in rig.launcher.jobs.items() if key != rig.launcher.launched[0]]
    assert max(others) < slow.started_at + slow.script.duration_s


def test_what_the_user_runs_today_is_measured_first_and_once(rig):
    rig.first = (LAYOUTS[4],)
    search = rig.open_driver().run()
    assert search.trials[0].layout == LAYOUTS[4]
    assert len({t.layout.key for t in search.trials}) == len(search.trials) == 9


@pytest.mark.fault(43)
def test_the_space_running_out_ends_the_search(rig):
    rig.limits = replace(rig.limits, max_trials=50)
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.SPACE_EXHAUSTED)


def test_a_cancel_ends_everything_in_flight_with_its_own_reason(rig):
    asked = iter([False, True])
    rig.callbacks = DriverCallbacks(cancel_requested=lambda: next(asked))
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.CANCELLED, EndReason.CANCELLED_BY_USER)
    assert len(search.trials) == 2
    assert [t.state for t in search.trials] == [TrialState.CANCELLED] * 2
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_USER}


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
    rig.limits, rig.callbacks = (
        Limits(max_trials=1, parallel_trials=1),
        DriverCallbacks(cancel_requested=lambda: next(asked)),
    )
    rig.launcher.meets = [None]
    monkeypatch.setattr(rig.launcher, "poll", lambda keys: dict.fromkeys(keys, ending))
    [attempt] = rig.open_driver().run().trials[0].attempts
    assert (attempt.state, attempt.job_id, attempt.excerpt) == (TrialState.CANCELLED, job_id, words)


def test_a_layout_of_another_global_batch_is_measured_but_never_best(rig):
    odd = Layout(data_parallel=4, micro_batch_size=4, grad_accum_steps=2)
    rig.first = (odd,)
    rig.launcher.script = lambda spec: Script(tokens_per_sec=9000.0 if spec.layout == odd else 1000.0)
    search = rig.open_driver().run()
    assert search.trials[0].measured.tokens_per_sec == 9000.0
    assert search.best_trial not in (None, "t0001")


class Steps(ScriptedLauncher):
    """Launcher whose attempts are steps of a job, known only once they run."""

    def _status(self, key: str) -> LaunchStatus:
        ending = super()._status(key)
        return replace(ending, job_id="job-1.4") if ending.started else ending


def test_an_attempt_that_began_and_ended_between_two_looks_is_known_by_its_step(rig):
    rig.launcher, rig.limits = Steps(script=lambda spec: Script(duration_s=0.0)), Limits(1, 1)
    search = rig.open_driver().run()
    assert [attempt.job_id for trial in search.trials for attempt in trial.attempts] == ["job-1.4"]
