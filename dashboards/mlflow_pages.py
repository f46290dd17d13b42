"""What people read of a search, for MLflow's parent run: the report with its main figures, and a description.

The driver writes the report into the search's folder; here it is only found out whether MLflow has it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards import mlflow_runs as runs
from trials.folder import SearchFolder, open_plain
from trials.ledger.events import SearchRecord
from trials.trial import utc_seconds, utc_text

if TYPE_CHECKING:
    from dashboards.mlflow_note import Link

REPORT_PAUSE_S = 600.0
"""Between two reports sent while the search runs: each is five megabytes."""


@dataclass(frozen=True)
class Pages:
    """What MLflow lacks: artifacts by their names, and tags, the description among them."""

    texts: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


def due_pages(search: SearchRecord, folder: SearchFolder, tags: Mapping[str, str], is_last: bool, link: Link) -> Pages:
    """What is to be sent now to a run that has these `tags`.

    While the search runs, a report that is ten minutes newer than the one MLflow has, and the description as of then;
    once it has ended any newer one, with figures. `is_last`: description and figures are due in any case, for the run
    is about to be ended. OSError and ValueError where the report cannot be read, and what drawing it raises.
    """
    report = _newer_report(folder.report, tags.get(runs.REPORT), 0.0 if search.state.is_ended else REPORT_PAUSE_S)
    if report is None and not is_last:
        return Pages()

    # Templates and plotly.js are loaded by whoever shows a search, and by nobody's start.
    from dashboards.mlflow_note import search_note
    from dashboards.report.data import report_data
    from dashboards.report.figure_page import figure_pages

    data = report_data(search, search.created_at if report is None else utc_seconds(report.written_at))
    tags = runs.note_tags(search_note(search, data, link))
    figures = figure_pages(data) if search.state.is_ended else {}
    texts = {f"figures/{key}.html": page for key, page in figures.items()}
    if report is None:
        return Pages(texts, tags)
    return Pages({"report.html": report.text, **texts}, {**tags, runs.REPORT: report.written_at})


@dataclass(frozen=True)
class _Report:
    """The file as it was swapped in at this time, UTC RFC 3339."""

    written_at: str
    text: str


def _newer_report(path: Path, sent_at: str | None, pause_s: float) -> _Report | None:
    """The report, where it was written otherwise than at `sent_at`, and so long after it; None where there is none."""
    try:
        with open_plain(path) as stream:
            written_at = utc_text(os.fstat(stream.fileno()).st_mtime)
            if sent_at is not None and not _is_newer(written_at, sent_at, pause_s):
                return None
            return _Report(written_at, stream.read().decode("utf-8"))
    except FileNotFoundError:
        return None


def _is_newer(written_at: str, sent_at: str, pause_s: float) -> bool:
    """An older one than was sent lies in a folder that was brought here, and is what there is now."""
    return written_at != sent_at and not 0 <= utc_seconds(written_at) - utc_seconds(sent_at) < pause_s
