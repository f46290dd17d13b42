"""The same in every view: node-hours with an idle pilot, and the reason why finals ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow.points import search_points
from dashboards.mlflow.runs import parent_view
from dashboards.report.sentences import describe_confidence, describe_cost, describe_spending
from dashboards.search_view import SearchView
from dashboards.terminal.progress import format_node_hours
from orchestrator.records.summary import status_of
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import MINIMAL, loaded
from trials.analysis.finals import Finals
from trials.analysis.node_time import search_node_time
from trials.files.folders import SearchFolder
from trials.ledger.events import FABRIC_CHECK, EventKind, SearchRecord

ATTEMPT_H, IDLE_H = 0.25, 0.125
ALL_H = ATTEMPT_H + IDLE_H


def summary_of(record: SearchRecord, folder: Path) -> dict[str, Any]:
    return status_of(record, loaded(folder, MINIMAL), SearchFolder(Path("/none"))).plain()


def points_of(record: SearchRecord, key: str, **after: int) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in search_points(record, **after) if point.key == key]


def test_node_hours_that_no_trial_was_charged_for_are_in_every_sum(tmp_path):
    search = SearchUnderTest()
    search.event(EventKind.PILOT_SUBMITTED, pilot="p0001", num_nodes=2, reserved_s=900.0)
    search.propose()
    search.submit(is_step=True)
    search.measure("t0001", 1000.0)
    search.event(EventKind.PILOT_ENDED, pilot="p0001", job_id="4711", node_hours=ALL_H, billed_hours=2 * ALL_H)
    search.end()
    record = search.record
    summary = summary_of(record, tmp_path)
    assert summary["budget"]["node_hours_used"] == ALL_H
    assert summary["node_time"]["idle_node_hours"] == IDLE_H
    view = SearchView.of(record, record.ended_at)
    assert format_node_hours(record) == "0.375 node-hours used"
    assert describe_cost(view).startswith("0.375 node-hours")
    assert "of 0.375 node-hours" in describe_spending(view)
    assert points_of(record, "node_hours_used") == [(1, ATTEMPT_H), (2, ALL_H)]
    assert search_points(record, after_step=2) == [], "it is sent once"
    assert {point.step for point in search_points(search.records[-2])} == {1}, "while the search runs"


def test_the_fabric_check_is_told_by_name_with_its_retry():
    search = SearchUnderTest()
    search.propose_check()
    search.submit(FABRIC_CHECK, "a1")
    search.end_attempt(FABRIC_CHECK, "a1", state="failed", reason="node_failure", node_hours=0.25)
    search.submit(FABRIC_CHECK, "a2")
    search.end_attempt(FABRIC_CHECK, "a2", state="failed", reason="script_error", node_hours=0.25)
    found = search_node_time(search.record)
    assert (found.node_hours, found.fabric_check_node_hours) == (0.5, 0.5)
    assert (found.preempted_node_hours, found.unmeasured_node_hours) == (0.0, 0.0)
    search.end()
    assert points_of(search.record, "node_hours_used")[-1][1] == 0.5


UNTIL, FIXED = Finals.UNTIL_DECIDED, Finals.FIXED


@pytest.mark.parametrize(
    ("rule", "has_ended", "is_told"), [(UNTIL, True, True), (FIXED, True, False), (UNTIL, False, False)]
)
def test_status_report_and_mlflow_say_why_the_finals_ended_where_that_was_decided(tmp_path, rule, has_ended, is_told):
    spec = {"search": {"finals": rule.value, "finalists": 2, "finalist_repeats": 3}, "global_batch_size": 2}
    search = SearchUnderTest(spec)
    for kind in ("search", "repeat"):
        for layout, speed in ((Layout(micro_batch_size=2), 1000.0), (Layout(grad_accum_steps=2), 2000.0)):
            search.measure(search.start(layout, kind), speed)
    if has_ended:
        search.end()
    record = search.record
    told = {"ending": "decided", "rounds": 1, "max_rounds": 3, "layouts": 2, "are_paired": False} if is_told else None
    assert summary_of(record, tmp_path)["finals"] == told
    assert parent_view(record).tags.get("parlay.finals") == ("decided" if is_told else None)
    words = describe_confidence(SearchView.of(record, record.ended_at or record.created_at))
    assert any("The finals ended after 1 of at most 3 rounds" in sentence for sentence in words) is is_told
