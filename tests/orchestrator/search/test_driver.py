"""The loop of a search on a simulated clock: what is launched, retried, stopped, counted, and survives a crash."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from orchestrator.launchers.base import ENDING_ALLOWANCE_S
from orchestrator.samplers.ordered import GridSampler
from orchestrator.search import history as history_module
from orchestrator.search import time_limits
from orchestrator.search.attempts import TrialProgram, longest_attempt_s
from orchestrator.search.course import Hooks
from orchestrator.search.limits import Limits
from search_spaces.layout import Layout
from tests.orchestrator.search.scripted import LAYOUTS, RULES, Rig, Script, ScriptedLauncher
from trials.classify import Ending
from trials.ledger.database import LedgerFull
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.ranking import Objective, upper_bound_of
from trials.rival import read_rival
from trials.trial import FailureReason, TrialState


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path)


def speed_by_layout(spec) -> Script:
    return Script(tokens_per_sec=1000.0 + 100 * LAYOUTS.index(spec.layout))


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
    rig.hooks = Hooks(predict=lambda layout: {"step_time_s": 0.5 * LAYOUTS.index(layout)})
    search = rig.open_driver().run()
    assert [trial.prediction for trial in search.trials] == [{"step_time_s": 0.5 * n} for n in range(len(LAYOUTS))]


def test_a_running_trial_finds_in_best_json_what_it_has_to_reach(rig):
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    last = rig.launcher.jobs[rig.launcher.launched[-1]].request
    other = replace(last.spec, trial="t0099")
    rival = read_rival(other, last.folder.best, {})
    tokens = other.global_batch_size * other.model.seq_length
    assert rival is not None
    assert rival.trial == search.best_trial
    # 8 % slower than its one run: what runs differ by.
    assert rival.step_time_s == pytest.approx(tokens / 1800.0 * 1.09, rel=0.01)


def test_the_baseline_and_what_is_measured_again_never_stop_as_dominated(rig):
    rig.limits = replace(rig.limits, finalists=1, finalist_repeats=1)
    rig.first = (LAYOUTS[4],)
    rig.open_driver().run()
    may_stop = {
        (job.request.spec.kind.value, job.request.spec.layout.key): job.request.spec.measure.stop_dominated
        for job in rig.launcher.jobs.values()
    }
    searched = {key: may for (kind, key), may in may_stop.items() if kind == "search"}
    assert searched == {layout.key: layout != LAYOUTS[4] for layout in LAYOUTS}
    assert not any(may for (kind, _), may in may_stop.items() if kind == "finalist")


def test_a_dominated_trial_has_failed_and_keeps_what_it_saw_as_a_bound(rig):
    slow = Script(tokens_per_sec=500.0, reason=FailureReason.DOMINATED, excerpt="500 tokens/s")
    rig.launcher.script = lambda spec: slow if spec.layout == LAYOUTS[3] else speed_by_layout(spec)
    search = rig.open_driver().run()
    trial = next(t for t in search.trials if t.layout == LAYOUTS[3])
    assert (trial.state, trial.reason, len(trial.attempts)) == (TrialState.FAILED, FailureReason.DOMINATED, 1)
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
def test_fault_43_the_space_running_out_ends_the_search(rig):
    rig.limits = replace(rig.limits, max_trials=50)
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.SPACE_EXHAUSTED)


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [
        (FailureReason.GPU_OOM, 1),
        (FailureReason.SCRIPT_ERROR, 1),
        (FailureReason.HANG, 2),
        (FailureReason.NODE_FAILURE, 3),
        (FailureReason.LAUNCH_FAILURE, 3),
    ],
)
def test_a_failure_is_tried_again_as_often_as_its_reason_allows(rig, reason, attempts):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(reason=reason)
    search = rig.open_driver().run()
    assert [a.reason for a in search.trials[0].attempts] == [reason] * attempts
    assert (search.trials[0].state, search.trials[0].reason) == (TrialState.FAILED, reason)


def test_a_retry_that_succeeds_is_the_trials_value(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(reason=FailureReason.HANG if spec.attempt == "a1" else None)
    trial = rig.open_driver().run().trials[0]
    assert [a.state for a in trial.attempts] == [TrialState.FAILED, TrialState.MEASURED]
    assert trial.measured["tokens_per_sec"] == 1000.0


@pytest.mark.fault(41)
def test_fault_41_every_layout_failing_is_a_clean_end_without_a_feasible_layout(rig):
    rig.launcher.script = lambda spec: Script(reason=FailureReason.GPU_OOM)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert len(search.trials) == 9
    assert search.best_trial is None


@pytest.mark.fault(42)
def test_fault_42_three_alike_broken_scripts_stop_the_search_with_the_traceback(rig):
    rig.limits = replace(rig.limits, parallel_trials=1)
    rig.launcher.script = lambda spec: Script(
        reason=FailureReason.SCRIPT_ERROR, excerpt=f"{spec.trial}\nNameError: name 'x' is not defined"
    )
    search = rig.open_driver().run()
    assert (search.state, search.end_reason, len(search.trials)) == (SearchState.FAILED, EndReason.SCRIPT_ERROR, 3)
    assert "NameError" in search.detail


def test_three_different_script_errors_do_not_stop_the_search(rig):
    rig.launcher.script = lambda spec: Script(reason=FailureReason.SCRIPT_ERROR, excerpt=f"Error of {spec.trial}")
    assert rig.open_driver().run().end_reason is EndReason.NO_FEASIBLE_LAYOUT


@pytest.mark.usefixtures("constant_limits")
def test_the_budget_holds_with_everything_in_flight_reserved_to_its_limit(rig):
    rig.limits = Limits(max_trials=9, parallel_trials=3, budget_node_hours=2.5 * longest_attempt_s(RULES) / 3600)
    search = rig.open_driver().run()
    assert rig.launcher.most_in_flight == 2
    assert search.end_reason is EndReason.MAX_TRIALS  # what was reserved and not used is given back
    assert search.node_hours_used == pytest.approx(9 * 60 / 3600)


def test_a_limit_follows_the_trials_and_so_does_what_is_reserved(rig):
    rig.limits = Limits(max_trials=5, parallel_trials=1)
    search = rig.open_driver().run()
    limits = [trial.attempts[0].time_limit_s for trial in search.trials]
    assert limits == [600.0] * 3 + [pytest.approx(time_limits.ROOM * 60 + time_limits.LEAST_ROOM_S, abs=2)] * 2
    assert [t.attempts[0].reserved_s - t.attempts[0].time_limit_s for t in search.trials] == [ENDING_ALLOWANCE_S] * 5


def test_a_search_that_waits_too_long_for_its_queue_ends(rig):
    rig.launcher.script = lambda spec: Script(waits_s=5000.0)
    rig.limits = Limits(max_trials=9, parallel_trials=2, idle_limit_s=3600.0)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.IDLE)
    waits = "t0001.a1 waits: Priority; t0002.a1 waits: Priority"
    assert search.detail == f"nothing has started or ended for 3600 s; {waits}"
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_SEARCH}


def test_a_search_whose_trials_run_is_not_idle_however_long_they_take(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0)
    rig.limits = Limits(max_trials=3, parallel_trials=1, idle_limit_s=300.0)
    assert rig.open_driver().run().end_reason is EndReason.MAX_TRIALS


def test_a_spent_budget_ends_the_search_and_is_never_exceeded(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0)
    budget = 3.5 * longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=2, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.BUDGET)
    assert 0.7 * budget < search.node_hours_used <= budget
    assert all(t.state.is_ended for t in search.trials)


def test_retries_count_against_the_budget(rig):
    rig.launcher.script = lambda spec: Script(duration_s=590.0, reason=FailureReason.NODE_FAILURE)
    budget = 2.1 * longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=1, budget_node_hours=budget)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.BUDGET)
    assert [len(t.attempts) for t in search.trials] == [2]
    assert search.node_hours_used <= budget


def test_wall_time_ends_the_search_and_cancels_what_runs(rig):
    rig.limits = replace(rig.limits, parallel_trials=1, max_wall_time_s=200.0)
    rig.launcher.script = lambda spec: Script(duration_s=150.0)
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.WALL_TIME)
    assert all(t.state.is_ended for t in search.trials)


def test_a_cancel_ends_everything_in_flight_with_its_own_reason(rig):
    asked = iter([False, True])
    rig.hooks = Hooks(cancel_requested=lambda: next(asked))
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.CANCELLED, EndReason.CANCELLED_BY_USER)
    assert len(search.trials) == 2
    assert [t.state for t in search.trials] == [TrialState.CANCELLED] * 2
    assert {t.reason for t in search.trials} == {FailureReason.CANCELLED_BY_USER}


def test_a_launcher_that_refuses_all_work_stops_the_search_with_its_words(rig):
    rig.launcher = ScriptedLauncher(refuses="Invalid account or account/partition combination specified")
    search = rig.open_driver().run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.SITE_REFUSED)
    assert "Invalid account" in search.detail
    assert all(t.state is TrialState.CANCELLED for t in search.trials)


def test_an_interrupt_lets_running_trials_finish_and_proposes_nothing_more(rig):
    driver = None

    def interrupt_at_the_first_launch(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            driver.interrupt()

    rig.hooks = Hooks(on_event=interrupt_at_the_first_launch)
    driver = rig.open_driver()
    search = driver.run()
    assert search.state is SearchState.RUNNING
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * len(search.trials)
    assert 1 <= len(search.trials) <= 2
    rig.hooks = Hooks()
    assert rig.open_driver().run().state is SearchState.COMPLETED


def test_an_attempt_nobody_knows_of_is_unknown_not_dead(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    seen = []

    def come_back_later(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            rig.launcher.unknown.update(rig.launcher.launched)
        if event.kind is EventKind.ATTEMPT_UNKNOWN:
            seen.append(event.data["unknown_since"])
            rig.launcher.unknown.clear()

    rig.hooks = Hooks(on_event=come_back_later)
    trial = rig.open_driver().run().trials[0]
    assert len(trial.attempts) == 1
    assert trial.state is TrialState.MEASURED
    assert seen[0] is not None


@pytest.mark.parametrize(
    "broken", [{"nonce": "0" * 32}, {"schema": "parlay.outcome/99"}, {"status": "splendid"}, {"proof": {}}]
)
@pytest.mark.fault(26)
def test_fault_26_an_outcome_that_cannot_be_believed_is_result_invalid_and_never_best(rig, broken, monkeypatch):
    rig.limits = replace(rig.limits, max_trials=1)
    outcome = ScriptedLauncher._outcome
    monkeypatch.setattr(ScriptedLauncher, "_outcome", lambda self, job: Broken(outcome(self, job), broken))
    search = rig.open_driver().run()
    assert search.trials[0].reason is FailureReason.RESULT_INVALID
    assert search.best_trial is None


class Broken:
    def __init__(self, outcome, changes):
        self._data = outcome.to_json() | changes

    def to_json(self):
        return self._data


class Killed(BaseException):
    """Stands for the driver's process being killed at this instruction."""


def kill_after_journal_line(monkeypatch, number: int) -> None:
    """Kill the driver between the journal's line and the ledger's transaction of event `number`."""
    apply = history_module.LedgerWriter.apply

    def dies(self, search_id, event, after=None):
        if event.seq == number:
            raise Killed
        apply(self, search_id, event, after)

    monkeypatch.setattr(history_module.LedgerWriter, "apply", dies)


def kill_before_journal_line(monkeypatch, number: int) -> None:
    """Kill the driver after what event `number` tells of has happened, and before it is written down."""
    append = history_module.Journal.append

    def dies(self, event):
        raise_killed(event.seq == number)
        append(self, event)

    monkeypatch.setattr(history_module.Journal, "append", dies)


@pytest.mark.walks
@pytest.mark.timeout(180)  # some fifty searches, each with its own database and every event synced to disk
@pytest.mark.parametrize("when", ["before the journal", "before the ledger", "before the next step"])
def test_killed_after_any_event_and_resumed_the_search_ends_with_the_same_trials(tmp_path, monkeypatch, when):
    """Walks every event of a search that retries, fails, measures and measures again: none twice, none lost."""
    wanted, wanted_end, number = None, None, 1
    while True:
        number += 1
        limits = Limits(max_trials=3, parallel_trials=2, finalists=1, finalist_repeats=2)
        rig = Rig(tmp_path / str(number), limits=limits, first=LAYOUTS[1:2])
        rig.path.mkdir()
        rig.launcher.script = one_of_each
        with monkeypatch.context() as patch:
            if when == "before the journal":
                kill_before_journal_line(patch, number)
            elif when == "before the ledger":
                kill_after_journal_line(patch, number)
            else:
                rig.hooks = Hooks(on_event=lambda search, event, n=number: raise_killed(event.seq == n))
            try:
                rig.open_driver().run()
                killed = False
            except Killed:
                killed = True
        rig.hooks = Hooks()
        search = rig.open_driver().run()
        found = [(t.layout.key, t.kind, t.state, t.reason, [a.attempt for a in t.attempts]) for t in search.trials]
        end = (search.state, search.end_reason, search.best_trial)
        wanted, wanted_end = wanted or found, wanted_end or end
        assert (found, end) == (wanted, wanted_end), f"killed after event {number}"
        assert len(set(rig.launcher.launched)) == len(rig.launcher.launched)
        if not killed:
            break
    assert number > 35
    best, today = LAYOUTS[2].key, LAYOUTS[1].key
    assert [(key, kind) for key, kind, *_ in wanted[3:]] == [(best, "finalist"), (today, "finalist")] * 2


@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")])
def test_whatever_comes_between_a_trials_end_and_which_is_the_best_the_search_ends_with_its_best(
    rig, monkeypatch, error
):
    rig.limits = replace(rig.limits, max_trials=1)
    append, errors = Journal.append, [error]

    def broken_once(self, event):
        if event.kind is EventKind.BEST_CHANGED and errors:
            raise errors.pop()
        append(self, event)

    monkeypatch.setattr(Journal, "append", broken_once)
    with suppress(Killed):
        rig.open_driver().run()
    search = rig.open_driver().run()
    assert (search.state, search.best_trial) == (SearchState.COMPLETED, "t0001")
    assert json.loads((rig.path / "runs" / search.search_id / "best.json").read_text())["trial"] == "t0001"


@pytest.mark.parametrize("kind", [EventKind.SEARCH_STATE, EventKind.TRIAL_ENDED])
def test_a_ledger_without_room_has_every_event_before_the_driver_leaves(rig, monkeypatch, kind):
    rig.limits = replace(rig.limits, max_trials=1)
    apply, refused, seen = LedgerWriter.apply, [], []
    rig.hooks = Hooks(on_event=lambda search, event: seen.append(event.seq))

    def full_once(self, search_id, event, after=None):
        if event.kind is kind and event.data["state"] in ("completed", "measured") and not refused:
            refused.append(event)
            raise LedgerFull("the ledger's database has no room: database or disk is full")
        apply(self, search_id, event, after)

    monkeypatch.setattr(LedgerWriter, "apply", full_once)
    search = rig.open_driver().run()
    assert refused
    assert search.state.is_ended
    assert LedgerReader(f"sqlite:///{rig.path / 'ledger.db'}").search(search.search_id) == search
    assert seen == list(range(2, search.last_seq + 1)), "all but its creation, each once"


def raise_killed(now: bool) -> None:
    if now:
        raise Killed


def one_of_each(spec) -> Script:
    """The second fails, the first is tried again; the third is the best until it is measured again."""
    if spec.trial == "t0002":
        return Script(reason=FailureReason.GPU_OOM)
    if spec.trial == "t0001" and spec.attempt == "a1":
        return Script(reason=FailureReason.NODE_FAILURE, leaves_outcome=False)
    return Script(duration_s=90.0, tokens_per_sec=1500.0 if spec.trial == "t0003" else 1000.0 - int(spec.trial[1:]))


def test_a_job_without_a_trace_after_a_restart_is_lost_and_tried_once_more(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.hooks = Hooks(on_event=lambda search, event: raise_killed(event.kind is EventKind.ATTEMPT_RUNNING))
    with pytest.raises(Killed):
        rig.open_driver().run()
    rig.launcher = ScriptedLauncher(clock=rig.launcher.clock)
    rig.hooks = Hooks()
    trial = rig.open_driver().run().trials[0]
    assert [a.reason for a in trial.attempts] == [FailureReason.LOST, None]


def test_however_often_a_driver_ends_its_trial_is_not_lost(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(
        reason=FailureReason.INTERRUPTED if int(spec.attempt[1:]) < 6 else None, leaves_outcome=spec.attempt == "a6"
    )
    trial = rig.open_driver().run().trials[0]
    assert [a.reason for a in trial.attempts] == [FailureReason.INTERRUPTED] * 5 + [None]


def test_the_lease_is_kept_at_every_turn_and_a_lost_one_ends_the_driver_at_once(rig):
    kept = []

    def lose_the_third():
        kept.append(len(rig.launcher.launched))
        raise_killed(len(kept) == 3)

    rig.hooks = Hooks(keep_lease=lose_the_third)
    driver = rig.open_driver()
    with pytest.raises(Killed):
        driver.run()
    seq = driver.search.last_seq
    assert len(kept) == 3
    assert driver.search.in_flight
    assert rig.open_driver().search.last_seq >= seq


@pytest.mark.fault(27)
def test_fault_27_a_full_disk_is_said_once_and_stops_nothing(rig):
    rig.limits = replace(rig.limits, max_trials=2)
    notes, launch, failures = [], rig.launcher.launch, iter([True, True, True, False, False])

    def full_at_first(request):
        if next(failures):
            raise OSError(28, "No space left on device")
        return launch(request)

    rig.launcher.launch = full_at_first
    rig.hooks = Hooks(note=notes.append)
    search = rig.open_driver().run()
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * 2
    assert len(notes) == 1
    assert "No space left" in notes[0]


@pytest.mark.fault(28)
def test_fault_28_a_folder_that_cannot_be_read_holds_up_only_its_own_trial(rig, monkeypatch):
    verdict, unreadable = TrialProgram.verdict, iter(range(4))

    def fails_for_the_first(self, trial, attempt, ending, now):
        if trial.trial == "t0001" and next(unreadable, None) is not None:
            raise PermissionError(13, "Permission denied")
        return verdict(self, trial, attempt, ending, now)

    monkeypatch.setattr(TrialProgram, "verdict", fails_for_the_first)
    search = rig.open_driver().run()
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * 9
    assert all(len(t.attempts) == 1 for t in search.trials)


@pytest.mark.fault(45)
def test_fault_45_a_measurement_with_other_software_is_marked_and_never_the_best(rig, monkeypatch):
    outcome = ScriptedLauncher._outcome

    def newer_torch_for_the_fastest(self, job):
        version = "2.13.0" if job.request.spec.layout != LAYOUTS[-1] else "2.15.0"
        return replace(outcome(self, job), fingerprint={"torch": version, "host": job.request.spec.trial})

    monkeypatch.setattr(ScriptedLauncher, "_outcome", newer_torch_for_the_fastest)
    rig.launcher.script = speed_by_layout
    search = rig.open_driver().run()
    assert search.trials[-1].flags == ("fingerprint_changed",)
    assert search.trial(search.best_trial).layout == LAYOUTS[-2]


def test_nothing_is_proposed_while_a_trial_waits_for_room_in_the_budget(rig):
    reserved = longest_attempt_s(RULES) / 3600
    rig.limits = Limits(max_trials=9, parallel_trials=3, budget_node_hours=1.5 * reserved)
    waiting = []
    rig.hooks = Hooks(on_event=lambda search, event: waiting.append(sum(not t.attempts for t in search.trials)))
    rig.open_driver().run()
    assert max(waiting) <= 3


def test_an_attempt_never_costs_more_than_was_reserved_for_it(rig):
    """Not even when its end is only heard of days later."""
    rig.limits = replace(rig.limits, max_trials=1)
    rig.hooks = Hooks(on_event=lambda search, event: raise_killed(event.kind is EventKind.ATTEMPT_RUNNING))
    with pytest.raises(Killed):
        rig.open_driver().run()
    rig.launcher = ScriptedLauncher(clock=rig.launcher.clock + 3 * 86400)
    rig.hooks = Hooks()
    first, _ = rig.open_driver().run().trials[0].attempts
    assert first.reason is FailureReason.LOST
    assert first.node_hours == pytest.approx(longest_attempt_s(RULES) / 3600)


def test_stop_now_leaves_what_is_in_flight_as_it_is(rig):
    driver = None

    def stop_at_the_first_launch(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            driver.stop_now()

    rig.hooks = Hooks(on_event=stop_at_the_first_launch)
    driver = rig.open_driver()
    search = driver.run()
    assert search.state is SearchState.RUNNING
    assert search.in_flight
    rig.hooks = Hooks()
    done = rig.open_driver().run()
    assert [t.state for t in done.trials] == [TrialState.MEASURED] * 9


def test_a_layout_of_another_global_batch_is_measured_but_never_best(rig):
    odd = Layout(data_parallel=4, micro_batch_size=4, grad_accum_steps=2)
    rig.first = (odd,)
    rig.launcher.script = lambda spec: Script(tokens_per_sec=9000.0 if spec.layout == odd else 1000.0)
    search = rig.open_driver().run()
    assert search.trials[0].measured["tokens_per_sec"] == 9000.0
    assert search.best_trial not in (None, "t0001")


def test_no_more_trials_begin_than_the_search_is_granted(rig):
    rig.limits = replace(rig.limits, parallel_trials=4)
    rig.hooks = Hooks(may_begin=lambda held, more: min(more, 2 - held))
    search = rig.open_driver().run()
    assert rig.launcher.most_in_flight == 2
    assert (len(search.trials), search.end_reason) == (9, EndReason.MAX_TRIALS)


def test_a_search_that_may_begin_nothing_waits_and_goes_on_when_it_may(rig):
    answers = iter([0, 0, 0])
    rig.hooks = Hooks(may_begin=lambda held, more: next(answers, more))
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.MAX_TRIALS)


def test_a_search_that_waits_for_its_share_does_not_ask_its_sampler_again_and_again(rig, monkeypatch):
    answers, asked = iter([0] * 20), []
    rig.hooks = Hooks(may_begin=lambda held, more: next(answers, more))
    ask = GridSampler.ask
    monkeypatch.setattr(GridSampler, "ask", lambda sampler, n, known: asked.append(n) or ask(sampler, n, known))
    assert len(rig.open_driver().run().trials) == 9
    assert next(answers, None) is None
    assert len(asked) <= 1 + 9


def test_a_search_wants_no_more_trials_than_it_has_layouts_for(rig):
    asked = []
    rig.limits = replace(rig.limits, parallel_trials=4, max_trials=50)
    rig.hooks = Hooks(may_begin=lambda held, more: asked.append((held, more)) or more)
    rig.launcher.script = lambda spec: Script(duration_s=100.0 + 40 * LAYOUTS.index(spec.layout))
    search = rig.open_driver().run()
    assert (len(search.trials), search.end_reason) == (9, EndReason.SPACE_EXHAUSTED)
    assert all(held + more <= 4 for held, more in asked)
    assert (1, 0) in asked  # the last layouts are in flight, and there is nothing more to try


class Steps(ScriptedLauncher):
    """Attempts are steps of a job: which one, nobody knows before they run."""

    def _ending(self, key: str) -> Ending:
        ending = super()._ending(key)
        return replace(ending, job_id="job-1.4") if ending.started else ending


def test_an_attempt_that_began_and_ended_between_two_looks_is_known_by_its_step(rig):
    rig.launcher, rig.limits = Steps(script=lambda spec: Script(duration_s=0.0)), Limits(1, 1)
    search = rig.open_driver().run()
    assert [attempt.job_id for trial in search.trials for attempt in trial.attempts] == ["job-1.4"]
