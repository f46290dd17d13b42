"""Node-hours of a search with an idle pilot and a driver's job: every view has the same sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow.points import search_points
from dashboards.report.data import report_data
from dashboards.report.sentences import describe_cost, describe_spending
from dashboards.terminal.progress import format_node_hours
from orchestrator.records.summary import search_summary
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import MINIMAL, loaded
from trials.analysis.node_time import search_node_time
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind

ATTEMPT_H, IDLE_H, DRIVER_H = 0.25, 0.125, 0.5
ALL_H = ATTEMPT_H + IDLE_H + DRIVER_H


@pytest.fixture
def search() -> SearchUnderTest:
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 1000.0)
    search.event(EventKind.PILOT_ENDED, pilot="p0001", job_id="4711", node_hours=IDLE_H, billed_hours=2 * IDLE_H)
    search.event(EventKind.DRIVER_JOB_USED, job_id="815", node_share=0.25, node_hours=DRIVER_H, billed_hours=None)
    search.end()
    return search


def test_status_as_json(search, tmp_path):
    summary = search_summary(search.record, loaded(tmp_path, MINIMAL), SearchFolder(Path("/none")))
    assert summary["budget"]["node_hours_used"] == ALL_H
    assert summary["node_time"]["idle_node_hours"] == IDLE_H
    assert summary["node_time"]["driver_node_hours"] == DRIVER_H


def test_the_fabric_check_is_told_by_name_with_its_retry():
    search = SearchUnderTest()
    for name, reason in (("a1", "node_failure"), ("a2", None)):
        job: dict[str, Any] = {"attempt": name, "num_nodes": 2, "time_limit_s": 60.0, "reserved_s": 60.0}
        search.event(EventKind.FABRIC_CHECK, state="submitted", nonce="0" * 32, **job)
        ended: dict[str, Any] = {"node_hours": {"a1": 0.25, "a2": 0.5}[name], "billed_hours": None, "reason": reason}
        search.event(EventKind.FABRIC_CHECK, attempt=name, state="failed" if reason else "measured", **ended)
    found = search_node_time(search.record)
    assert (found.total, found.fabric_check, found.preempted, found.unmeasured) == (0.5, 0.5, 0.0, 0.0)
    search.end()
    assert 0.5 in [point.value for point in search_points(search.record) if point.key == "node_hours_used"]


def test_terminal_and_report(search):
    data = report_data(search.record, search.record.ended_at)
    assert format_node_hours(search.record) == "0.875 node-hours used"
    assert describe_cost(data).startswith("0.875 node-hours")
    assert "The driver's own job took 0.500 of 0.875 node-hours." in describe_spending(data)


def test_the_last_point_of_mlflow_has_what_no_trial_was_charged_for(search):
    used = [(point.step, point.value) for point in search_points(search.record) if point.key == "node_hours_used"]
    assert used == [(1, ATTEMPT_H), (2, ALL_H)]
    driver = [(point.step, point.value) for point in search_points(search.record) if point.key == "driver_node_hours"]
    assert driver == [(2, DRIVER_H)]
    assert search_points(search.record, after_step=2) == [], "it is sent once"


def test_mlflow_has_no_such_point_while_the_search_runs_or_where_trials_paid_for_all(search):
    assert {point.step for point in search_points(search.records[-2])} == {1}
    plain = SearchUnderTest()
    plain.measure(plain.start(Layout()), 1000.0)
    plain.end()
    assert {point.step for point in search_points(plain.record)} == {1}
