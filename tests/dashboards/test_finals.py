"""Reason of the end of a search's finals in all views."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.mlflow.runs import parent_view
from dashboards.report.data import report_data
from dashboards.report.sentences import describe_confidence
from orchestrator.records.summary import search_summary
from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import MINIMAL, loaded
from trials.analysis.finals import Finals
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

LAYOUTS = (Layout(micro_batch_size=2), Layout(grad_accum_steps=2))


def searched(rule: Finals) -> SearchUnderTest:
    """A search of two layouts that were measured again once, of at most three times."""
    spec = {"search": {"finals": rule.value, "finalists": 2, "finalist_repeats": 3}, "global_batch_size": 2}
    search = SearchUnderTest(spec)
    for kind in ("search", "repeat"):
        for layout, speed in zip(LAYOUTS, (1000.0, 2000.0), strict=True):
            search.measure(search.start(layout, kind), speed)
    search.end()
    return search


def summary_of(record: SearchRecord, folder: Path) -> dict:
    return search_summary(record, loaded(folder, MINIMAL), SearchFolder(Path("/none")))


def test_status_report_and_mlflow_say_why_the_finals_ended(tmp_path):
    record = searched(Finals.UNTIL_DECIDED).record
    assert summary_of(record, tmp_path)["finals"] == {
        "ending": "decided",
        "rounds": 1,
        "max_rounds": 3,
        "layouts": 2,
    }
    words = "The finals ended after 1 of at most 3 rounds: one layout is clearly faster than every other"
    assert any(sentence.startswith(words) for sentence in describe_confidence(report_data(record, record.ended_at)))
    assert parent_view(record).tags["parlay.finals"] == "decided"


@pytest.mark.parametrize(
    "record",
    [searched(Finals.FIXED).record, searched(Finals.UNTIL_DECIDED).records[-2]],
    ids=["a fixed number", "not ended"],
)
def test_nothing_is_said_where_nothing_was_decided(tmp_path, record):
    assert summary_of(record, tmp_path)["finals"] is None
    assert "parlay.finals" not in parent_view(record).tags
