"""What people read of a search, for MLflow's parent run: the report with its main figures, and a description.

The driver writes the report into the search's folder; here it is only found out whether MLflow has it as it is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dashboards.mlflow import runs
from search_spaces.plain_file import open_plain
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.trial import utc_seconds, utc_text

if TYPE_CHECKING:
    from dashboards.mlflow.description import Link

REPORT_PAUSE_S = 600.0
"""Between two reports sent while the search runs: each is five megabytes."""


@dataclass(frozen=True)
class SentPages:
    """What MLflow has: the report that was written at `report`, UTC RFC 3339, and the description of that moment or of
    `described_at`; None for neither, or not known."""

    report: str | None = None
    described_at: str | None = None


@dataclass(frozen=True)
class PendingPages:
    """What MLflow lacks: artifacts by their names, and tags, the description among them; which is then that of
    `described_at`."""

    texts: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    described_at: str | None = None


def pending_pages(
    search: SearchRecord, folder: SearchFolder, held: SentPages, is_last: bool, link: Link
) -> PendingPages:
    """What is to be sent now.

    While the search runs, a description with each new report, which is seldom enough, and a report that is ten minutes
    newer than the one MLflow has; once it has ended any newer one, and the figures. `is_last`: description and figures
    are due in any case, for the run is about to be ended. OSError and ValueError where the report cannot be read, and
    what drawing it raises.
    """
    written_at = _written_at(folder.report)
    if not is_last and written_at in (None, held.described_at or held.report):
        return PendingPages(described_at=held.described_at)

    # Templates and plotly.js are loaded by whoever shows a search, and by nobody's start.
    from dashboards.mlflow.description import search_description
    from dashboards.report.data import report_data
    from dashboards.report.figures.standalone_page import figure_pages

    data = report_data(search, search.created_at if written_at is None else utc_seconds(written_at))
    tags = runs.note_tags(search_description(data, link))
    figures = figure_pages(data) if search.state.is_ended else {}
    texts = {f"figures/{key}.html": page for key, page in figures.items()}
    if written_at is not None and _is_due(written_at, held.report, 0.0 if search.state.is_ended else REPORT_PAUSE_S):
        texts["report.html"], tags[runs.REPORT] = _read(folder.report)
    return PendingPages(texts, tags, written_at)


def _written_at(report: Path) -> str | None:
    """When the report was swapped in; None where there is none."""
    try:
        return utc_text(os.lstat(report).st_mtime)
    except FileNotFoundError:
        return None


def _is_due(written_at: str, sent_at: str | None, pause_s: float) -> bool:
    """An older one than was sent lies in a folder that was brought here, and is what there is now."""
    if sent_at is None:
        return True
    return written_at != sent_at and not 0 <= utc_seconds(written_at) - utc_seconds(sent_at) < pause_s


def _read(report: Path) -> tuple[str, str]:
    """The report, and when it was written: it may be a newer one than was looked at."""
    with open_plain(report) as stream:
        return stream.read().decode("utf-8"), utc_text(os.fstat(stream.fileno()).st_mtime)
