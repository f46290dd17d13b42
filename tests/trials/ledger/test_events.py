"""Events and their fold: valid orders, and lossless conversion to text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given

from tests.trials.ledger.stories import NOON, SEARCH_ID, Story, measured_story, stories
from trials.ledger.events import Event, EventKind, FencedError, SearchState
from trials.ledger.fold import apply_event, fold
from trials.trial import TrialState


@pytest.fixture
def story() -> Story:
    story = Story()
    story.create()
    story.propose()
    return story


@pytest.mark.slow
@given(stories())
def test_an_event_read_back_from_its_text_is_the_event_that_was_written(story):
    texts = [json.dumps(event.to_json(), allow_nan=False) for event in story.events]
    assert [Event.from_json(json.loads(text)) for text in texts] == story.events


def test_times_keep_their_microseconds_and_a_newer_event_is_refused():
    event = Event(1, 1, 0.1234567, EventKind.ATTEMPT_RUNNING, {"started_at": 1.0000004, "nodes": ("n1",)})
    text = event.to_json()
    assert (text["at"], text["data"]["started_at"]) == ("1970-01-01T00:00:00.123457Z", "1970-01-01T00:00:01.000000Z")
    assert event == Event.from_json(text)
    newer = measured_story().events[0].to_json() | {"schema": "parlay.event/2"}
    with pytest.raises(ValueError, match=r"parlay\.event/2"):
        Event.from_json(newer)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_an_event_holds_nothing_that_json_cannot_say(value):
    with pytest.raises((ValueError, TypeError)):
        Event(1, 1, NOON, EventKind.SEARCH_CREATED, {"spec": {"x": value}, "code_hash": ""})


def test_an_event_that_lacks_a_name_of_its_kind_is_refused():
    events = measured_story().events
    for number, event in enumerate(events):
        before = fold(SEARCH_ID, events[:number])
        for name in event.data:
            lacking = replace(event, data={other: event.data[other] for other in event.data if other != name})
            with pytest.raises(ValueError, match=f"lacks {name}"):
                apply_event(before, SEARCH_ID, lacking)


JOB = {"job_id": "815", "node_share": 1.0, "node_hours": 1.0, "billed_hours": None}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (EventKind.ATTEMPT_WAITS, {"trial": "t0001", "attempt": "a1", "waits_for": 3}),
        (EventKind.PILOT_ENDED, {"pilot": "p0001", "job_id": "4711", "node_hours": None, "billed_hours": None}),
    ],
)
def test_a_value_of_another_type_is_refused(story, kind, data):
    story.submit()
    story.submit_pilot()
    event = Event(story.search.last_seq + 1, 1, NOON, kind, data)
    with pytest.raises((ValueError, TypeError)):
        apply_event(story.search, story.search.search_id, Event.from_json(event.to_json()))


@pytest.mark.bad_input(45)
@pytest.mark.security("paths")
def test_a_name_that_leads_elsewhere_is_none(story):
    """Trials and attempts have folders named after them."""
    for name in ("../../../../x", "", "t1/..", "t", "a1", "t1\n"):
        with pytest.raises(ValueError, match="is not a name of a trial"):
            story.propose(name)
    for name in ("../x", "", "a1/..", "t1"):
        with pytest.raises(ValueError, match="is not a name of a attempt"):
            story.submit(attempt=name)


def test_the_fold_tells_how_the_search_went_with_a_start_at_the_beginning(story):
    search = measured_story(folder="/scratch/story").search
    trial = search.trial("t0001")
    assert (search.state, search.best_trial, search.folder) == (SearchState.COMPLETED, "t0001", "/scratch/story")
    assert [a.state for a in trial.attempts] == [TrialState.FAILED, TrialState.MEASURED]
    assert trial.measured.tokens_per_sec == 1000.0
    assert search.node_hours_used == pytest.approx(2 / 3)
    assert search.in_flight == ()
    assert search.ended_at == search.created_at + 12
    story.submit()
    story.run()
    story.end_attempt("t0001", "a1", state="failed", reason="job_lost", started_at=0.0, ended_at=1.0)
    assert story.search.trial("t0001").last_attempt.started_at == 0.0


def test_what_an_attempt_in_flight_may_cost_is_reserved(story):
    story.submit()
    assert story.search.node_hours_reserved == pytest.approx(90 / 3600)


def test_a_step_reserves_and_is_charged_nothing_and_its_pilot_all(story):
    story.submit_pilot("p0001", num_nodes=4, reserved_s=1800.0)
    story.submit(is_step=True)
    assert (story.search.node_hours_reserved, story.search.node_hours_used) == (2.0, 0.0)
    story.fail()
    assert (story.search.node_hours_reserved, story.search.node_hours_used) == (2.0, 0.0)
    assert story.search.trial("t0001").last_attempt.node_hours == 1 / 3
    story.end_pilot("p0001", 1.5)
    assert (story.search.node_hours_reserved, story.search.node_hours_used) == (0.0, 1.5)
    assert story.search.billed_hours == 24.0


def test_a_pilot_is_submitted_and_ends_once(story):
    with pytest.raises(ValueError, match="no such pilot is open"):
        story.end_pilot("p0001", 1.0)
    story.submit_pilot()
    with pytest.raises(ValueError, match="submitted twice"):
        story.submit_pilot()
    story.end_pilot("p0001", 1.0)
    with pytest.raises(ValueError, match="no such pilot is open"):
        story.end_pilot("p0001", 1.0)


def test_a_requeued_attempt_waits_again_and_what_its_first_run_cost_is_kept(story):
    story.submit()
    story.launch()
    story.run()
    story.requeue(restart=1, node_hours=0.25)
    [attempt] = story.search.in_flight
    assert (attempt.state, attempt.restart, attempt.started_at, attempt.nodes) == (TrialState.QUEUED, 1, None, ())
    assert (attempt.reserved_node_hours, attempt.job_id) == (0.25 + 90 / 3600, "4711")


def test_a_trial_between_two_attempts_has_not_ended_and_one_in_sight_again_is_no_longer_unknown(story):
    story.submit()
    story.fail()
    assert not story.search.trial("t0001").state.is_ended
    story.submit(attempt="a2")
    assert story.search.trial("t0001").state is TrialState.SUBMITTED
    for since in (NOON, None):
        story.lose_sight("t0001", "a2", since)
        assert story.search.in_flight[0].unknown_since == since


def trial_ended(state: str | None, reason: str | None) -> Callable[[Story], Event]:
    return lambda story: story.add(EventKind.TRIAL_ENDED, trial="t0001", state=state, reason=reason)


MEASURED = ("submit", "measure", "end_trial")
SECOND = {"attempt": "a2"}


@pytest.mark.parametrize(
    ("before", "act", "words"),
    [
        *((MEASURED, act, "frozen") for act in (Story.submit, Story.end_trial, Story.launch, Story.measure)),
        *((("submit", "fail"), act, "not in flight") for act in (Story.fail, Story.run, Story.launch, Story.measure)),
        (("submit",), lambda story: story.submit(**SECOND), "another attempt"),
        (("submit",), trial_ended("failed", "job_lost"), "before its attempt a1"),
        (("submit", "fail"), trial_ended("measured", None), "not measured by its last attempt"),
        (("submit",), lambda story: story.end_attempt("t0001", "a1", state="measured", reason=None), "without a meas"),
        ((), trial_ended("measured", "job_lost"), "measured"),
        ((), trial_ended("failed", None), "failed"),
        ((), trial_ended("running", None), "running"),
        (("submit", "launch", "launch", "run"), Story.launch, "already runs"),
        (("submit", "requeue"), lambda story: story.requeue(restart=1, node_hours=0.5), "cannot go back"),
        (("submit", "requeue"), lambda story: story.requeue(restart=2, node_hours=-0.1), "cannot go back"),
        ((), lambda story: story.best("t0001"), "cannot be the best"),
        (("end_trial",), lambda story: story.best("t0001"), "cannot be the best"),
        ((), Story.propose, "twice"),
        ((), lambda story: story.submit("t0002"), "never proposed"),
        ((), Story.create, "once"),
        ((), Story.take_over, "not a new one"),
    ],
)
def test_what_no_search_does_is_refused(story, before, act, words):
    for step in before:
        getattr(story, step)()
    with pytest.raises(ValueError, match=words):
        act(story)


def test_a_gap_a_repeat_and_no_beginning_are_refused(story):
    for seq in (2, 4):
        with pytest.raises(ValueError, match="3 was expected"):
            apply_event(story.search, story.search_id, Event(seq, 1, NOON, EventKind.BEST_CHANGED, {"trial": None}))
    with pytest.raises(ValueError, match="once"):
        Story().propose()
    assert fold("story-aaaaaa", []) is None


def test_a_driver_that_takes_over_changes_whose_word_counts(story):
    before = story.search
    story.fencing = 2
    story.take_over()
    assert story.search == replace(before, last_seq=before.last_seq + 1, fencing=2)
    story.fencing = 2
    story.submit()
    story.fencing = 1
    with pytest.raises(FencedError, match="old lease 1"):
        story.run()
