"""Failed trials, invalid outcomes, disks and launchers that refuse, and drivers that are killed or stopped."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.rig import LAYOUTS, Killed, Rig, raise_killed, steady
from trials.ledger.database import LedgerFull
from trials.ledger.events import EndReason, EventKind, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason, TrialState


@pytest.fixture
def one(rig) -> Rig:
    """A search of one trial."""
    rig.limits = Limits(max_trials=1, parallel_trials=1)
    return rig


def failing(reason: FailureReason, **script: object):
    return lambda spec, restart: Script(reason=reason, **script)


@pytest.mark.parametrize(
    ("reason", "attempts"),
    [
        (FailureReason.GPU_OOM, 1),
        pytest.param(FailureReason.NODE_FAILURE, 3, marks=pytest.mark.fault(19)),
        pytest.param(FailureReason.GPU_MEMORY_IN_USE, 3, marks=pytest.mark.fault(37)),
    ],
)
def test_a_failure_is_tried_again_as_often_as_its_reason_allows(one, reason, attempts):
    one.script = failing(reason)
    [trial] = one.run().trials
    assert [a.reason for a in trial.attempts] == [reason] * attempts
    assert (trial.state, trial.reason) == (TrialState.FAILED, reason)


@pytest.mark.slow
@pytest.mark.fault(41)
@pytest.mark.parametrize("reason", [FailureReason.GPU_OOM, FailureReason.SCRIPT_ERROR])
def test_every_layout_failing_in_its_own_way_is_a_clean_end_without_a_feasible_layout(rig, reason):
    rig.script = lambda spec, restart: Script(reason=reason, excerpt=f"Error of {spec.trial}")
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert (len(search.trials), search.best_trial) == (9, None)


def with_interface(layout: Layout, name: str) -> Layout:
    return replace(layout, settings=f"env.NCCL_SOCKET_IFNAME={name}")


@pytest.mark.fault(42)
@pytest.mark.parametrize("settings", [None, ("lo", "eth0")], ids=["plain", "with all settings"])
def test_three_alike_broken_scripts_stop_the_search_with_the_traceback(rig, settings):
    if settings is not None:
        rig.layouts = tuple(with_interface(layout, name) for name in settings for layout in LAYOUTS[:4])
    rig.limits = replace(rig.limits, parallel_trials=1)
    rig.script = lambda spec, restart: Script(
        reason=FailureReason.SCRIPT_ERROR, excerpt=f"{spec.trial}\nNameError: name 'x' is not defined"
    )
    search = rig.run()
    assert (search.state, search.end_reason, len(search.trials)) == (SearchState.FAILED, EndReason.SCRIPT_ERROR, 3)
    assert "NameError" in search.detail


@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "broken", [{"nonce": "0" * 32}, {"schema": "parlay.outcome/99"}, {"status": "splendid"}, {"proof": {}}]
)
def test_an_outcome_that_cannot_be_believed_is_result_invalid_and_never_best(one, broken, monkeypatch):
    outcome = ScriptedLauncher._outcome
    changed = lambda self, job: SimpleNamespace(to_json=lambda: outcome(self, job).to_json() | broken)  # noqa: E731
    monkeypatch.setattr(ScriptedLauncher, "_outcome", changed)
    search = one.open_driver().run()
    assert search.trials[0].reason is FailureReason.RESULT_INVALID
    assert search.best_trial is None


@pytest.mark.fault(27)
def test_a_full_disk_is_said_once_and_stops_nothing(rig, logged):
    rig.limits = replace(rig.limits, max_trials=2)
    launch, failures = rig.launcher.launch, iter([True, True, True, False, False])

    def full_at_first(request):
        if next(failures):
            raise OSError(28, "No space left on device")
        return launch(request)

    rig.launcher.launch = full_at_first
    assert [t.state for t in rig.run().trials] == [TrialState.MEASURED] * 2
    [note] = logged
    assert "No space left" in note


@pytest.mark.fault(45)
def test_a_measurement_with_other_software_is_marked_and_never_the_best(rig):
    rig.script = lambda spec, restart: replace(
        steady(spec), fingerprint={"torch": "2.13.0" if spec.layout != LAYOUTS[-1] else "2.15.0", "host": spec.trial}
    )
    search = rig.run()
    assert search.trials[-1].flags == ("fingerprint_changed",)
    assert search.trial(search.best_trial).layout == LAYOUTS[-2]


def program(content: str) -> dict[str, dict[str, str]]:
    return {"scripts": {"/home/a/train.py": content * 16}}


@pytest.mark.parametrize("parallel_trials", [1, 3])
@pytest.mark.parametrize("resumes", [False, True])
def test_a_script_that_changes_ends_the_search_with_both_hashes(rig, parallel_trials, resumes):
    rig.limits = replace(rig.limits, parallel_trials=parallel_trials)

    def edited_later(spec, restart) -> Script:
        is_edited = spec.trial > "t0003"
        speed = 9000.0 if is_edited else 1000.0
        return Script(tokens_per_sec=speed, fingerprint=program("9f8e" if is_edited else "1a2b"))

    rig.script = edited_later
    if resumes:
        rig.iterate(until=lambda search: len(search.trials) >= 3)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.PROGRAM_CHANGED)
    assert all(part in search.detail for part in ("/home/a/train.py", "new search"))
    assert 0 < search.detail.index("1a2b1a2b") < search.detail.index("9f8e9f8e")
    assert len(search.trials) <= 3 + parallel_trials
    assert search.trial(search.best_trial).measured.tokens_per_sec == 1000.0


def test_a_program_that_some_ranks_cannot_read_is_no_other_one(rig):
    rig.script = lambda spec, restart: Script(fingerprint=program("1a2b") if spec.trial < "t0005" else {})
    assert rig.run().end_reason is not EndReason.PROGRAM_CHANGED


def ended_by_others(*trials: str, reason: FailureReason = FailureReason.CANCELLED_BY_USER):
    """Script of a search in which these trials end like this."""
    return lambda spec, restart: Script(reason=reason, leaves_outcome=False) if spec.trial in trials else Script()


@pytest.mark.parametrize(
    ("trial", "reason", "attempts"),
    [
        ("t0001", FailureReason.CANCELLED_BY_USER, [2, 1]),
        ("t0001", FailureReason.JOB_LOST, [2, 1]),
        ("t0002", FailureReason.CANCELLED_BY_USER, [1, 1]),
    ],
)
def test_a_baseline_alone_that_others_cancelled_is_tried_again_once(rig, trial, reason, attempts):
    rig.first, rig.limits = LAYOUTS[4:5], Limits(max_trials=2, parallel_trials=1)
    rig.script = ended_by_others(trial, reason=reason)
    search = rig.run()
    assert [len(trial.attempts) for trial in search.trials] == attempts
    assert {attempt.reason for attempt in search.trial(trial).attempts} == {reason}


def test_a_baseline_is_not_tried_again_where_the_search_is_cancelled_or_the_budget_is_spent(tmp_path):
    cancelled, poor = (Rig("scripted", tmp_path / name, Limits(1, 1), first=LAYOUTS[4:5]) for name in ("one", "two"))
    began = cancelled.launcher.now()
    cancelled.callbacks = DriverCallbacks(cancel_requested=lambda: cancelled.launcher.now() > began)
    poor.script = ended_by_others("t0001")
    poor.limits = replace(poor.limits, budget_node_hours=(poor.launcher.longest_s(600.0) + 1) / 3600)
    for rig in (cancelled, poor):
        assert [attempt.reason for attempt in rig.run().attempts] == [FailureReason.CANCELLED_BY_USER]


def test_energy_that_no_driver_reports_ends_the_search_at_the_first_trial(rig):
    rig.limits, words = replace(rig.limits, parallel_trials=1), "rank 0: the driver of its device reports no energy"
    rig.script = failing(FailureReason.ENERGY_UNKNOWN, excerpt=words)
    search = rig.run()
    assert (search.state, search.end_reason) == (SearchState.FAILED, EndReason.NO_FEASIBLE_LAYOUT)
    assert (search.detail, len(search.trials)) == (words, 1)


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.SCRIPT_ERROR])
@pytest.mark.parametrize("parallel_trials", [1, 3])
def test_a_setting_that_fails_with_every_layout_neither_blames_nodes_nor_ends_the_search(
    rig, reason, parallel_trials, caplog
):
    rig.layouts = tuple(with_interface(layout, name) for layout in LAYOUTS[:4] for name in ("lo", "nope"))
    rig.limits = Limits(max_trials=8, parallel_trials=parallel_trials)
    broken = Script(reason=reason, excerpt="unknown interface")
    rig.script = lambda spec, restart: broken if "nope" in spec.layout.settings else Script()
    search = rig.run()
    failed = [trial for trial in search.trials if "nope" in trial.layout.settings]
    assert [trial.reason for trial in failed][1:] == [FailureReason.SETTING_FAILURE] * (len(failed) - 1)
    assert (len(failed), sum(len(trial.attempts) for trial in failed)) <= (1 + parallel_trials, 3 + parallel_trials)
    assert all(attempt.exclude == () for trial in search.trials for attempt in trial.attempts[:1])
    assert (search.state, search.end_reason) == (SearchState.COMPLETED, EndReason.SPACE_EXHAUSTED)
    assert "NCCL_SOCKET_IFNAME=nope: every attempt with it failed" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "is_left"), [("interrupt", False), ("stop_now", True)])
def test_a_driver_that_is_stopped_lets_trials_finish_or_leaves_them_and_proposes_nothing_more(rig, stop, is_left):
    def stop_at_the_first_launch(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            getattr(driver, stop)()

    rig.callbacks = DriverCallbacks(on_event=stop_at_the_first_launch)
    driver = rig.open_driver()
    search = driver.run()
    assert search.state is SearchState.RUNNING
    assert bool(search.in_flight) is is_left
    assert is_left or {trial.state for trial in search.trials} == {TrialState.MEASURED}
    assert 1 <= len(search.trials) <= 2
    rig.callbacks = DriverCallbacks()
    assert [t.state for t in rig.run().trials] == [TrialState.MEASURED] * 9


@pytest.mark.parametrize("error", [Killed(), OSError(28, "No space left on device")])
def test_whatever_comes_between_a_trials_end_and_which_is_the_best_the_search_ends_with_its_best(
    one, monkeypatch, error
):
    append, errors = Journal.append, [error]

    def broken_once(self, event):
        if event.kind is EventKind.BEST_CHANGED and errors:
            raise errors.pop()
        append(self, event)

    monkeypatch.setattr(Journal, "append", broken_once)
    with suppress(Killed):
        one.run()
    search = one.run()
    assert (search.state, search.best_trial) == (SearchState.COMPLETED, "t0001")
    [incumbent] = json.loads(one.folder.best.read_text())["incumbents"]
    assert incumbent["trial"] == "t0001"


@pytest.mark.parametrize("kind", [EventKind.SEARCH_STATE, EventKind.TRIAL_ENDED])
def test_a_ledger_without_room_has_every_event_before_the_driver_leaves(one, monkeypatch, kind):
    apply, refused, seen = LedgerWriter.apply, [], []
    one.callbacks = DriverCallbacks(on_event=lambda search, event: seen.append(event.seq))

    def full_once(self, event, after):
        if event.kind is kind and event.data["state"] in ("completed", "measured") and not refused:
            refused.append(event)
            raise LedgerFull("the ledger's database has no room: database or disk is full")
        apply(self, event, after)

    monkeypatch.setattr(LedgerWriter, "apply", full_once)
    search = one.run()
    assert refused
    assert LedgerReader(f"sqlite:///{one.path / 'ledger.db'}").search(search.search_id) == search
    assert seen == list(range(2, search.last_seq + 1)), "all but its creation, each once"


def test_the_lease_is_renewed_in_every_iteration_and_a_lost_one_ends_the_driver_at_once(rig):
    kept = []

    def lose_the_third():
        kept.append(len(rig.launcher.launched))
        raise_killed(len(kept) == 3)

    rig.callbacks = DriverCallbacks(heartbeat=lose_the_third)
    driver = rig.open_driver()
    with pytest.raises(Killed):
        driver.run()
    assert len(kept) == 3
    assert driver.search.in_flight
    assert rig.open_driver().search.last_seq >= driver.search.last_seq
