"""Progress as text: limits, time remaining, and attempts in flight."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dashboards.terminal.progress import (
    describe_in_flight,
    describe_time_remaining,
    format_clock,
    limit_usages,
)
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import START, SearchUnderTest
from trials.ledger.events import PilotUsage

LIMITS = {"max_trials": 10, "budget_node_hours": 4.0, "max_wall_time": "7200s"}


def searched(num_ended: int, num_in_flight: int = 0, spec: dict[str, Any] | None = None) -> SearchUnderTest:
    """Trials one after the other, each 60 s from its proposal to its end, and then some that still run."""
    search = SearchUnderTest({"search": LIMITS} if spec is None else spec)
    for _ in range(num_ended):
        search.measure(search.start(Layout()), 1000.0)
    for _ in range(num_in_flight):
        search.start(Layout())
    return search


def test_every_limit_has_its_usage_and_what_has_no_limit_has_none():
    record = searched(3, 1).record
    usages = {usage.name: usage for usage in limit_usages(record, START + 10 + 1800)}
    assert list(usages) == ["layouts", "node-hours", "time"]
    assert (usages["layouts"].used, usages["layouts"].limit, usages["layouts"].text) == (3, 10, "3 of up to 10")
    assert usages["node-hours"].used == record.node_hours_used
    assert usages["node-hours"].text == f"{record.node_hours_used:.3f} of 4, 0.167 reserved"
    assert (usages["time"].used, usages["time"].limit, usages["time"].text) == (1800, 7200, "30:00 of 2:00:00")
    assert limit_usages(searched(1, spec={"search": {}}).record, START) == []


def test_what_open_pilots_have_held_so_far_is_used_and_no_more_than_was_reserved():
    """The first pilot was charged, the second has begun its first step, and the third waits."""
    search = searched(2, 1)
    trials = [
        replace(trial, attempts=tuple(replace(a, is_step=True, job_id=f"{job}.0") for a in trial.attempts))
        for trial, job in zip(search.record.trials, (4711, 4712, 4712), strict=True)
    ]
    charged = PilotUsage(2, 1800.0, START, node_hours=0.25, job_id="4711")
    pilots = {"p0001": charged, "p0002": PilotUsage(2, 1800.0, START), "p0003": PilotUsage(2, 1800.0, START)}
    record = replace(search.record, trials=tuple(trials), pilots=pilots)
    began = trials[1].attempts[0].started_at

    def text(seconds: float) -> str:
        return next(usage.text for usage in limit_usages(record, began + seconds) if usage.name == "node-hours")

    assert text(900.0) == "0.750 of 4, 1.5 reserved"
    assert text(86_400.0) == "1.250 of 4, 1 reserved"


def test_the_time_of_an_ended_search_stands_still_and_repeats_are_no_layouts():
    search = searched(1)
    search.end()
    early, late = (limit_usages(search.record, START + moment)[-1].used for moment in (10_000, 20_000))
    assert early == late == search.record.ended_at - search.record.created_at
    search = searched(2)
    search.start(Layout(), "repeat")
    assert limit_usages(search.record, START)[0].used == 2


class TestTimeRemaining:
    def test_it_follows_from_the_time_in_flight_of_the_trials_before(self):
        record = searched(4).record
        now = record.trials[-1].last_attempt.ended_at
        busy_s = sum(t.last_attempt.ended_at - t.last_attempt.submitted_at for t in record.trials)
        words = f"up to {format_clock(busy_s / 4 * 6)} remaining"
        assert describe_time_remaining(record, now) == words
        assert describe_time_remaining(record, now + 86_400) == words, "a day without a driver does not count"

    def test_trials_side_by_side_are_counted_once(self):
        search = SearchUnderTest({"search": LIMITS})
        names = [search.start(Layout()) for _ in range(3)]
        for name in names:
            search.measure(name, 1000.0)
        attempts = [trial.last_attempt for trial in search.record.trials]
        busy_s = attempts[-1].ended_at - attempts[0].submitted_at
        assert format_clock(busy_s / 3 * 7) in describe_time_remaining(search.record, 0.0)

    @pytest.mark.parametrize(
        "spec", [{"search": {}}, {"search": LIMITS, "launcher": {"kind": "simulated"}}, {"search": {"max_trials": 4}}]
    )
    def test_there_is_none_without_a_limit_on_a_simulated_clock_and_when_all_have_ended(self, spec):
        assert describe_time_remaining(searched(4, spec=spec).record, START) is None

    def test_there_is_none_of_too_few_trials_among_finalists_and_after_the_end(self):
        assert describe_time_remaining(searched(2).record, START) is None
        search = searched(4)
        search.start(Layout(), "repeat")
        assert describe_time_remaining(search.record, START) is None
        ended = searched(4)
        ended.end()
        assert describe_time_remaining(ended.record, START) is None


def waiting(job_id: str | None) -> SearchUnderTest:
    """Search of one attempt that does not run yet."""
    search = SearchUnderTest()
    search.propose()
    search.submit()
    if job_id is not None:
        search.launch(job_id=job_id)
    return search


MANY = tuple(f"n{number}" for number in range(9))


@pytest.mark.parametrize(
    ("search", "changes", "after_s", "words"),
    [
        (searched(0, 1), {}, 75, "running for 1:15 on node1 node2"),
        (waiting(None), {}, 5, "submitted for 0:05"),
        (waiting("4711"), {}, 3700, "queued for 1:01:40 as 4711"),
        (searched(0, 1), {"waits_for": "suspended"}, 75, "running (suspended) for 1:15 on node1 node2"),
        (searched(0, 1), {"nodes": MANY}, 90, "running for 1:30 on n0 n1 n2 n3 and 5 more"),
    ],
    ids=["running", "submitted", "queued", "suspended", "many nodes"],
)
def test_an_attempt_in_flight_says_as_what_where_and_since_when(search, changes, after_s, words):
    (attempt,) = search.record.in_flight
    since = attempt.started_at or attempt.submitted_at
    assert describe_in_flight(replace(attempt, **changes), since + after_s) == f"t0001.a1 {words}"


def test_an_attempt_out_of_reach_says_since_when_and_on_a_simulated_clock_no_time_is_reported():
    (attempt,) = searched(0, 1).record.in_flight
    lost = replace(attempt, unknown_since=attempt.started_at + 60)
    assert describe_in_flight(lost, attempt.started_at + 90).endswith(" on node1 node2, unreachable for 0:30")
    assert describe_in_flight(attempt, START, is_simulated=True) == "t0001.a1 running on node1 node2"
