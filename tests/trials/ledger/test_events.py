"""Events and their fold: valid orders, and lossless conversion to text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from tests.trials.ledger.stories import NOON, SEARCH_ID, Story, measured_story, stories
from trials.ledger.events import Event, EventKind, FencedError, SearchState
from trials.ledger.fold import apply_event, fold
from trials.trial import FailureReason, TrialState


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


def test_times_stand_in_the_text_as_utc_and_keep_their_microseconds():
    event = Event(1, 1, 0.1234567, EventKind.ATTEMPT_RUNNING, {"started_at": 1.0000004, "nodes": ("n1",)})
    text = event.to_json()
    assert (text["at"], text["data"]["started_at"]) == ("1970-01-01T00:00:00.123457Z", "1970-01-01T00:00:01.000000Z")
    assert event.data == {"started_at": 1.0, "nodes": ["n1"]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_an_event_holds_nothing_that_json_cannot_say(value):
    with pytest.raises((ValueError, TypeError)):
        Event(1, 1, NOON, EventKind.SEARCH_CREATED, {"spec": {"x": value}, "code_hash": ""})


def test_a_newer_event_is_refused():
    newer = measured_story().events[0].to_json() | {"schema": "parlay.event/2"}
    with pytest.raises(ValueError, match=r"parlay\.event/2"):
        Event.from_json(newer)


def test_an_event_that_lacks_a_name_of_its_kind_is_refused():
    events = measured_story().events
    for number, event in enumerate(events):
        before = fold(SEARCH_ID, events[:number])
        for name in event.data:
            lacking = replace(event, data={other: event.data[other] for other in event.data if other != name})
            with pytest.raises(KeyError, match=name):
                apply_event(before, SEARCH_ID, lacking)


UNBILLED = {"billed_hours": None}


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (EventKind.ATTEMPT_WAITS, {"trial": "t0001", "attempt": "a1", "waits_for": 3}),
        (EventKind.PILOT_ENDED, {"pilot": "p0001", "job_id": "4711", "node_hours": None, **UNBILLED}),
        (EventKind.DRIVER_JOB_USED, {"job_id": None, "node_share": 1.0, "node_hours": 1.0, **UNBILLED}),
        (EventKind.DRIVER_JOB_USED, {"job_id": "815", "node_share": 1.0, "node_hours": None, **UNBILLED}),
        (EventKind.DRIVER_JOB_USED, {"job_id": "815", "node_share": 1.0, "node_hours": -1.0, **UNBILLED}),
        (EventKind.DRIVER_JOB_USED, {"job_id": "815", "node_share": -1.0, "node_hours": 1.0, **UNBILLED}),
    ],
)
def test_a_value_of_another_type_is_refused(kind, data):
    story = Story()
    story.create()
    story.propose("t0001")
    story.submit("t0001")
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


def test_the_fold_tells_how_the_search_went():
    search = measured_story(folder="/scratch/story").search
    trial = search.trial("t0001")
    assert (search.state, search.best_trial, search.folder) == (SearchState.COMPLETED, "t0001", "/scratch/story")
    assert [a.state for a in trial.attempts] == [TrialState.FAILED, TrialState.MEASURED]
    assert trial.measured.tokens_per_sec == 1000.0
    assert search.node_hours_used == pytest.approx(2 / 3)
    assert search.in_flight == ()
    assert search.ended_at == search.created_at + 12


def test_the_last_event_of_a_drivers_job_counts_and_several_jobs_add_up(story):
    before = story.search.node_hours_used
    for job_id, node_hours in (("815", 0.5), ("815", 0.75), ("816", 1.0)):
        story.use_driver_job(job_id, 0.25, node_hours)
    assert story.search.driver_node_hours == 1.75
    assert story.search.node_hours_used == pytest.approx(before + 1.75)


def test_the_fold_of_nothing_is_nothing():
    assert fold("story-aaaaaa", []) is None


def test_node_hours_are_reserved_while_an_attempt_is_in_flight(story):
    story.submit()
    assert story.search.node_hours_reserved == pytest.approx(90 / 3600)


def test_a_requeued_attempt_waits_again_and_what_its_first_run_cost_is_kept(story):
    story.submit()
    story.launch()
    story.run()
    story.requeue(restart=1, node_hours=0.25)
    [attempt] = story.search.in_flight
    assert (attempt.state, attempt.restart, attempt.started_at, attempt.nodes) == (TrialState.QUEUED, 1, None, ())
    assert attempt.reserved_node_hours == 0.25 + 90 / 3600
    assert attempt.job_id == "4711"


@pytest.mark.parametrize(("restart", "node_hours"), [(1, 0.5), (0, 0.5), (2, 0.1)])
def test_a_requeue_goes_forward_only(story, restart, node_hours):
    story.submit()
    story.requeue(restart=1, node_hours=0.25)
    with pytest.raises(ValueError, match="cannot go back"):
        story.requeue(restart=restart, node_hours=node_hours)


def test_a_trial_between_two_attempts_has_not_ended(story):
    story.submit()
    story.fail()
    assert not story.search.trial("t0001").state.is_ended
    story.submit(attempt="a2")
    assert story.search.trial("t0001").state is TrialState.SUBMITTED


def test_a_start_at_the_beginning_of_a_simulated_clock_is_kept(story):
    story.submit()
    story.run()
    story.end_attempt("t0001", "a1", state="failed", reason="job_lost", started_at=0.0, ended_at=1.0)
    assert story.search.trial("t0001").last_attempt.started_at == 0.0


def test_an_event_in_sight_again_is_no_longer_unknown(story):
    story.submit()
    story.lose_sight("t0001", "a1", NOON)
    assert story.search.in_flight[0].unknown_since == NOON
    story.lose_sight("t0001", "a1", None)
    assert story.search.in_flight[0].unknown_since is None


def test_a_finished_trial_is_frozen():
    story = measured_story()
    for change in (story.submit, story.end_trial, lambda: story.launch(attempt="a2"), story.measure):
        with pytest.raises(ValueError, match="frozen"):
            change()


def test_an_attempt_ends_once(story):
    story.submit()
    story.fail()
    for change in (story.fail, story.run, story.launch, story.measure):
        with pytest.raises(ValueError, match="not in flight"):
            change()


def test_there_is_never_more_than_one_live_attempt(story):
    story.submit()
    with pytest.raises(ValueError, match="another attempt"):
        story.submit(attempt="a2")


def test_a_trial_cannot_end_before_its_attempt(story):
    story.submit()
    with pytest.raises(ValueError, match="before its attempt a1"):
        story.add(EventKind.TRIAL_ENDED, trial="t0001", state="failed", reason="job_lost")


def test_a_trial_is_measured_only_by_its_last_attempt(story):
    story.submit()
    story.fail()
    with pytest.raises(ValueError, match="not measured by its last attempt"):
        story.add(EventKind.TRIAL_ENDED, trial="t0001", state="measured", reason=None)


def test_a_measured_attempt_has_an_outcome(story):
    story.submit()
    with pytest.raises(ValueError, match="without a measurement"):
        story.end_attempt("t0001", "a1", state="measured", reason=None)


@pytest.mark.parametrize(("state", "reason"), [("measured", "job_lost"), ("failed", None), ("running", None)])
def test_every_ending_but_a_measurement_has_a_reason(story, state, reason):
    with pytest.raises(ValueError, match=state):
        story.add(EventKind.TRIAL_ENDED, trial="t0001", state=state, reason=reason)


def test_an_attempt_that_runs_cannot_be_launched_again(story):
    story.submit()
    story.launch()
    story.launch()
    story.run()
    with pytest.raises(ValueError, match="already runs"):
        story.launch()


def test_only_a_measured_trial_may_be_the_best(story):
    with pytest.raises(ValueError, match="cannot be the best"):
        story.best("t0001")
    story.add(EventKind.TRIAL_ENDED, trial="t0001", state="failed", reason=FailureReason.INVALID_LAYOUT)
    with pytest.raises(ValueError, match="cannot be the best"):
        story.best("t0001")


def test_a_trial_is_proposed_once_and_before_anything_else_of_it(story):
    with pytest.raises(ValueError, match="twice"):
        story.propose()
    with pytest.raises(ValueError, match="never proposed"):
        story.submit("t0002")
    with pytest.raises(ValueError, match="never proposed"):
        story.best("t0002")


def test_a_gap_a_repeat_and_a_second_beginning_are_refused(story):
    for seq in (2, 4):
        with pytest.raises(ValueError, match="3 was expected"):
            apply_event(story.search, story.search_id, Event(seq, 1, NOON, EventKind.BEST_CHANGED, {"trial": None}))
    with pytest.raises(ValueError, match="once"):
        story.create()
    with pytest.raises(ValueError, match="once"):
        Story().propose()


def test_a_driver_that_takes_over_changes_nothing_but_whose_word_counts(story):
    before = story.search
    story.fencing = 2
    story.take_over()
    assert story.search == replace(before, last_seq=before.last_seq + 1, fencing=2)


def test_a_search_is_taken_over_under_a_new_lease_only(story):
    with pytest.raises(ValueError, match="not a new one"):
        story.take_over()


def test_an_old_lease_is_fenced_off(story):
    story.fencing = 2
    story.submit()
    story.fencing = 1
    with pytest.raises(FencedError, match="old lease 1"):
        story.run()
