"""Kills and stops of the driver: the next driver repeats nothing and loses nothing (kills at any call: on_slurm/)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace

import pytest

from orchestrator.search.context import DriverCallbacks
from tests.rig import Killed, raise_killed
from trials.ledger.database import LedgerFull
from trials.ledger.events import EventKind, SearchState
from trials.ledger.journal import Journal
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.trial import TrialState


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
        rig.run()
    search = rig.run()
    assert (search.state, search.best_trial) == (SearchState.COMPLETED, "t0001")
    assert json.loads(rig.folder.best.read_text())["trial"] == "t0001"


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
    search = rig.run()
    assert refused
    assert LedgerReader(f"sqlite:///{rig.path / 'ledger.db'}").search(search.search_id) == search
    assert seen == list(range(2, search.last_seq + 1)), "all but its creation, each once"


def test_the_lease_is_renewed_in_every_iteration_and_a_lost_one_ends_the_driver_at_once(rig):
    kept = []

    def lose_the_third():
        kept.append(len(rig.launcher.launched))
        raise_killed(len(kept) == 3)

    rig.callbacks = DriverCallbacks(renew_lease=lose_the_third)
    driver = rig.open_driver()
    with pytest.raises(Killed):
        driver.run()
    assert len(kept) == 3
    assert driver.search.in_flight
    assert rig.open_driver().search.last_seq >= driver.search.last_seq
