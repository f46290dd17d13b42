"""Events of a search that are due for a notification, and their sentences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.lifecycle.notify_events import event_message, last_progress_at
from orchestrator.schema.notify import NotifyEvent, NotifySection
from search_spaces.layouts.layout import Layout
from tests.dashboards.report.searches import BASELINE, FASTEST, a_search, spec
from tests.dashboards.searches import START, SearchUnderTest

NOTIFY = NotifySection(stall_after="2h", speedup=1.4)
END, STALL, BUDGET, SPEEDUP = NotifyEvent


def measured(*layouts: tuple[Layout, float], **search: Any) -> SearchUnderTest:
    found = SearchUnderTest(spec(search=search))
    for layout, speed in layouts:
        found.measure(found.start(layout), speed)
    return found


class TestStall:
    def test_time_counts_from_the_last_end_of_a_trial_else_from_the_creation(self):
        search = SearchUnderTest(spec())
        assert last_progress_at(search.record) == search.record.created_at
        search.start(BASELINE)
        assert last_progress_at(search.record) == search.record.created_at, "a start is no end"
        search.measure("t0001", 1000.0)
        assert last_progress_at(search.record) == search.record.trials[0].last_attempt.ended_at

    @pytest.mark.parametrize(("hours", "is_due"), [(1.9, False), (2.0, True), (50.0, True)])
    def test_it_is_due_after_the_stated_time(self, hours, is_due):
        search = measured((BASELINE, 1000.0)).record
        message = event_message(STALL, search, NOTIFY, last_progress_at(search) + 3600 * hours)
        assert (message is not None) is is_due


@pytest.mark.parametrize(
    ("limits", "passed_s", "said"),
    [
        ({"max_trials": 3}, 60, None),
        ({"max_trials": 2}, 60, "layouts 2 of up to 2"),
        ({"max_trials": 2, "against": "other"}, 60, None),
        ({"max_trials": 30, "budget_node_hours": 0.7}, 60, None),
        ({"max_trials": 30, "budget_node_hours": 0.6}, 60, "node-hours 0.500 of 0.6"),
        ({"max_trials": 30, "max_wall_time": "2h"}, 5399, None),
        ({"max_trials": 30, "max_wall_time": "2h"}, 5400, "time 1:30:00 of 2:00:00"),
    ],
)
def test_three_quarters_of_the_first_limit_are_named(limits, passed_s, said):
    search = measured((BASELINE, 1000.0), (FASTEST, 1500.0), **limits).record
    message = event_message(BUDGET, search, NOTIFY, search.created_at + passed_s)
    assert message == (said and f"tiny-abcdef: three quarters of a limit are used: {said}")


@pytest.mark.parametrize(
    ("speeds", "said"),
    [
        ((), None),
        ((1000.0,), None),
        ((1000.0, 1390.0), None),
        (
            (1000.0, 1500.0),
            "tiny-abcdef: Running, 2 layouts. Fastest so far: 1.50x, not re-measured; t0002 (tp2 pp2 dp2 mb1 1f1b)",
        ),
        ((1000.0, 900.0), None),
    ],
)
def test_the_factor_over_the_baseline_is_that_of_the_verdict(speeds, said):
    search = measured(*zip((BASELINE, FASTEST), speeds, strict=False)).record
    message = event_message(SPEEDUP, search, NOTIFY, START)
    assert (message or "").startswith(said or "")
    assert (message is None) is (said is None)


def test_after_the_end_the_end_alone_is_due():
    search = a_search()
    assert event_message(END, search.record, NOTIFY, START) is None
    search.end()
    later = datetime(2099, 1, 1, tzinfo=UTC).timestamp()
    messages = {event: event_message(event, search.record, NOTIFY, later) for event in NotifyEvent}
    assert [event for event, message in messages.items() if message is not None] == [END]
    assert messages[END].startswith("tiny-abcdef is completed; best: t0003, ")
