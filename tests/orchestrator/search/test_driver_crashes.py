"""Kills and stops of the driver at any point: the next driver repeats nothing and loses nothing."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.stopping import Limits
from tests.orchestrator.scripted import Script, ScriptedLauncher
from tests.orchestrator.search.kill_points import KillPoint, counting, walks
from tests.orchestrator.search.rig import LAYOUTS, Killed, Rig, every_event, raise_killed, the_last_of_each_kind
from trials.analysis.finals import Finals
from trials.ledger.database import LedgerFull
from trials.ledger.events import Event, EventKind, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import FailureReason, TrialState


@pytest.mark.slow
def test_an_interrupt_lets_running_trials_finish_and_proposes_nothing_more(rig):
    driver = None

    def interrupt_at_the_first_launch(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            driver.interrupt()

    rig.callbacks = DriverCallbacks(on_event=interrupt_at_the_first_launch)
    driver = rig.open_driver()
    search = driver.run()
    assert search.state is SearchState.RUNNING
    assert [t.state for t in search.trials] == [TrialState.MEASURED] * len(search.trials)
    assert 1 <= len(search.trials) <= 2
    rig.callbacks = DriverCallbacks()
    assert rig.open_driver().run().state is SearchState.COMPLETED


def disturbed(path) -> Rig:
    """A search with a retry, a failure, a measurement and a repeat."""
    path.mkdir()
    limits = Limits(max_trials=3, parallel_trials=2, finalists=1, finalist_repeats=2, finals=Finals.FIXED)
    rig = Rig(path, limits=limits, first=LAYOUTS[1:2])
    rig.launcher.script = one_of_each
    return rig


def story(search) -> list:
    trials = [(t.layout.key, t.kind, t.state, t.reason, [a.attempt for a in t.attempts]) for t in search.trials]
    return [*trials, (search.state, search.end_reason, search.best_trial)]


@pytest.fixture(scope="module")
def wanted(tmp_path_factory) -> tuple[list, list[Event]]:
    """Story of the search without a kill, and its events after the first."""
    events: list[Event] = []
    rig = disturbed(tmp_path_factory.mktemp("undisturbed") / "rig")
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: events.append(event))
    told = story(rig.open_driver().run())
    assert len(events) > 34
    best, today = LAYOUTS[2].key, LAYOUTS[1].key
    assert [(key, kind) for key, kind, *_ in told[3:-1]] == [(best, "repeat"), (today, "repeat")] * 2
    return told, events


@pytest.mark.slow
@walks(["an event into the journal", "an event into the ledger"], every_event, the_last_of_each_kind)
def test_killed_at_any_event_and_resumed_the_search_ends_with_the_same_trials(tmp_path, wanted, name, after, killed_at):
    """Check that no attempt is launched twice or lost."""
    undisturbed_story, events = wanted
    for event in killed_at(events):
        rig = disturbed(tmp_path / str(event.seq))
        with counting(name, KillPoint(event.seq, after)), pytest.raises(Killed):
            rig.open_driver().run()
        assert story(rig.open_driver().run()) == undisturbed_story, f"killed at event {event.seq}, {event.kind}"
        assert len(set(rig.launcher.launched)) == len(rig.launcher.launched)


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
    rig.callbacks = DriverCallbacks(on_event=lambda search, event: seen.append(event.seq))

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


def one_of_each(spec) -> Script:
    """The second trial fails, the first is retried; the third is the best until it is measured again."""
    if spec.trial == "t0002":
        return Script(reason=FailureReason.GPU_OOM)
    if spec.trial == "t0001" and spec.attempt == "a1":
        return Script(reason=FailureReason.NODE_FAILURE, leaves_outcome=False)
    return Script(duration_s=90.0, tokens_per_sec=1500.0 if spec.trial == "t0003" else 1000.0 - int(spec.trial[1:]))


def test_a_job_without_a_trace_after_a_restart_is_lost_and_tried_once_more(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: raise_killed(event.kind is EventKind.ATTEMPT_RUNNING)
    )
    with pytest.raises(Killed):
        rig.open_driver().run()
    rig.launcher = ScriptedLauncher(clock=rig.launcher.clock)
    rig.callbacks = DriverCallbacks()
    trial = rig.open_driver().run().trials[0]
    assert [a.reason for a in trial.attempts] == [FailureReason.JOB_LOST, None]


def test_however_often_a_driver_ends_its_trial_is_not_lost(rig):
    rig.limits = replace(rig.limits, max_trials=1)
    rig.launcher.script = lambda spec: Script(
        reason=FailureReason.INTERRUPTED if int(spec.attempt[1:]) < 6 else None, leaves_outcome=spec.attempt == "a6"
    )
    trial = rig.open_driver().run().trials[0]
    assert [a.reason for a in trial.attempts] == [FailureReason.INTERRUPTED] * 5 + [None]


def test_the_lease_is_renewed_in_every_iteration_and_a_lost_one_ends_the_driver_at_once(rig):
    kept = []

    def lose_the_third():
        kept.append(len(rig.launcher.launched))
        raise_killed(len(kept) == 3)

    rig.callbacks = DriverCallbacks(renew_lease=lose_the_third)
    driver = rig.open_driver()
    with pytest.raises(Killed):
        driver.run()
    seq = driver.search.last_seq
    assert len(kept) == 3
    assert driver.search.in_flight
    assert rig.open_driver().search.last_seq >= seq


@pytest.mark.slow
def test_stop_now_leaves_what_is_in_flight_as_it_is(rig):
    driver = None

    def stop_at_the_first_launch(search, event):
        if event.kind is EventKind.ATTEMPT_LAUNCHED:
            driver.stop_now()

    rig.callbacks = DriverCallbacks(on_event=stop_at_the_first_launch)
    driver = rig.open_driver()
    search = driver.run()
    assert search.state is SearchState.RUNNING
    assert search.in_flight
    rig.callbacks = DriverCallbacks()
    done = rig.open_driver().run()
    assert [t.state for t in done.trials] == [TrialState.MEASURED] * 9
