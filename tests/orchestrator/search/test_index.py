"""Index of a search: equal to the whole record, at constant cost per event."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from orchestrator.search.context import DriverCallbacks
from orchestrator.search.index import NUM_LAST_ENDED, SearchIndex
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.samplers.test_feedback import history_of
from tests.rig import LAYOUTS, Rig
from tests.trials.analysis.test_pareto import on
from tests.trials.ledger.stories import Story, stories
from trials.analysis.ranked_layout import needs_repeat, suspect_reruns
from trials.analysis.ranking import Objective, rank, upper_bound_of, value_of
from trials.attempt_result import may_retry
from trials.ledger.events import EventKind, SearchRecord
from trials.ledger.fold import apply_event
from trials.trial import FailureReason, TrialKind, TrialState

pytestmark = pytest.mark.slow

SPEED = Objective.TOKENS_PER_SEC
GLOBAL_BATCH = 16


def index_of(search: SearchRecord, headroom: MemoryHeadroom | None = None) -> SearchIndex:
    return SearchIndex(search, SPEED, GLOBAL_BATCH, headroom)


def assert_true_to(index: SearchIndex, search: SearchRecord, headroom: MemoryHeadroom | None = None) -> None:
    """Compare every property with the record's trials."""
    trials, attempts = search.trials, [attempt for trial in search.trials for attempt in trial.attempts]
    ended = [attempt for attempt in attempts if attempt.state.is_ended]
    checks = () if search.fabric_check is None else (search.fabric_check.trial,)
    assert index.unended == [trial for trial in (*checks, *trials) if not trial.state.is_ended]
    assert index.in_flight == search.in_flight
    assert index.node_hours_used == search.node_hours_used
    assert index.node_hours_reserved == search.node_hours_reserved
    assert index.num_layouts == search.num_layouts
    all_ended = [attempt for attempt in search.attempts if attempt.state.is_ended]
    moments = [m for attempt in all_ended for m in (attempt.started_at, attempt.ended_at) if m is not None]
    assert index.last_change_at == max([search.created_at, *moments])
    known = [a for a in ended if a.state is TrialState.MEASURED and None not in (a.started_at, a.ended_at)]
    assert index.num_measured == len(known)
    assert index.longest_s(1) == max([0.0, *(attempt.ended_at - attempt.started_at for attempt in known)])
    over = [trial for trial in trials if trial.state.is_ended]
    assert index.has_cut_short_trial == any(t.last_attempt is None or may_retry(t, t.last_attempt) for t in over)
    by_end = sorted((t for t in over if t.last_attempt is not None), key=lambda t: t.last_attempt.ended_at)
    assert index.last_ended == by_end[-NUM_LAST_ENDED:]
    assert index.first_measured == next((trial for trial in trials if trial.measured is not None), None)
    assert index.suspects == [trial for trial in trials if needs_repeat(trial)]
    assert index.measured_again == [trial for trial in trials if trial.kind is TrialKind.REPEAT]
    second = suspect_reruns(trials)
    assert index.repeats == [t for t in trials if t.kind is TrialKind.REPEAT and t.trial not in second]
    assert all(index.was_tried(trial.layout) for trial in trials)
    assert all(trial in index.runs_of(trial.layout) for trial in trials)
    bound = lambda t: upper_bound_of(t, SPEED)  # noqa: E731
    assert index.feedback() == history_of(trials, lambda t: value_of(t, SPEED), bound, headroom)
    ranking = rank(trials, SPEED, GLOBAL_BATCH, headroom)
    leader = index.leader()
    assert (leader.best, leader.fastest) == (ranking.best, ranking.fastest)
    assert index.ranking() == ranking


@settings(deadline=None, max_examples=60)
@given(story=stories())
def test_followed_event_by_event_it_says_what_the_record_says(story):
    search, index = None, None
    for event in story.events:
        search = apply_event(search, story.search_id, event)
        index = index or index_of(search)
        index.update(search)
        assert_true_to(index, search)


def test_the_fastest_on_each_number_of_nodes_is_known_by_itself():
    story = Story()
    story.create()
    trials = on(2, 1, 90.0), on(1, 2, 100.0), on(1, 3, 120.0), on(4, 4, 80.0, flags=("fingerprint_changed",))
    leaders = SearchIndex(replace(story.search, trials=trials), SPEED, 8).leaders_by_nodes()
    assert [ranking.fastest and ranking.fastest.trial for ranking in leaders] == ["t0001", "t0003", None]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_what_was_used_is_the_same_whichever_trial_ended_first(order):
    story, hours, names = Story(), (0.1, 0.2, 0.3), ("t0001", "t0002", "t0003")
    story.create()
    index = index_of(story.search)
    for name in names:
        story.propose(name)
        story.submit(name)
    for number in order:
        story.end_attempt(names[number], "a1", state="failed", reason="job_lost", node_hours=hours[number])
        index.update(story.search)
    assert index.node_hours_used == index_of(story.search).node_hours_used == 0.6


def eventful(spec) -> Script:
    """Layouts that hang, run out of memory, are pruned or suspect; the fastest needs the most memory."""
    number, speed = LAYOUTS.index(spec.layout), 1000.0 + 10.0 * LAYOUTS.index(spec.layout)
    if number == 1 and spec.attempt == "a1":
        return Script(reason=FailureReason.HANG)
    if number in (2, 3):
        reason = FailureReason.GPU_OOM if number == 2 else FailureReason.PRUNED
        return Script(duration_s=90.0, tokens_per_sec=speed if number == 3 else None, reason=reason)
    if number == 4 and spec.kind is TrialKind.SEARCH:
        return Script(tokens_per_sec=speed / 2, flags=("suspect_node",))
    return Script(tokens_per_sec=speed, peak_memory_gib=2.0 if number == len(LAYOUTS) - 1 else 1.0)


@pytest.mark.parametrize("headroom", [None, MemoryHeadroom(2.0, 0.5)], ids=["any memory", "memory left free"])
def test_through_a_whole_search_with_reruns_and_finalists_it_says_what_the_record_says(tmp_path, headroom):
    rig, followed, kinds = Rig("scripted", tmp_path, headroom=headroom), [], set()
    rig.launcher.script = eventful
    rig.limits = replace(rig.limits, finalists=2, finalist_repeats=2)

    def look(search: SearchRecord, event) -> None:
        index = followed[0] if followed else followed.append(index_of(search, headroom)) or followed[0]
        index.update(search)
        assert_true_to(index, search, headroom)
        repeats = {trial.trial for trial in index.repeats}
        before = tuple(trial for trial in search.trials if trial.trial not in repeats)
        assert_true_to(index.before_repeats, replace(search, trials=before), headroom)
        kinds.add((bool(index.suspects), bool(repeats)))

    rig.callbacks = DriverCallbacks(on_event=look)
    assert rig.run().state.is_ended
    assert kinds == {(False, False), (True, False), (True, True)}, "the search went through all of it"


def test_an_event_updates_one_trial_and_an_iteration_without_one_none(tmp_path, monkeypatch):
    rig, updated, iterations = Rig("scripted", tmp_path), [], []
    note = SearchIndex._apply
    monkeypatch.setattr(SearchIndex, "_apply", lambda *known: updated.append(known[1]) or note(*known))
    events = []
    rig.callbacks = DriverCallbacks(
        on_event=lambda search, event: events.append(event), heartbeat=lambda: iterations.append(len(updated))
    )
    rig.run()
    about_trials = [event for event in events if "trial" in event.data and event.kind is not EventKind.BEST_CHANGED]
    assert len(updated) == len(about_trials)
    assert len(iterations) > len(LAYOUTS)
