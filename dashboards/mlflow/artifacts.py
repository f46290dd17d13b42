"""Report, figures and description for MLflow's parent run.

The driver writes the report into the search's folder; this module only decides whether MLflow lacks it.
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
"""Pause between two reports sent while the search runs; each has 5 MB."""


@dataclass(frozen=True)
class SentPages:
    """State of MLflow: time of its report, and of the report that its description belongs to where that is another.

    UTC RFC 3339; None for none or unknown.
    """

    report: str | None = None
    described_at: str | None = None


@dataclass(frozen=True)
class PendingPages:
    """Artifacts by name and tags that MLflow lacks; `described_at` is the time of the description among them."""

    texts: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    described_at: str | None = None


def pending_pages(
    search: SearchRecord, folder: SearchFolder, sent: SentPages, is_last: bool, link: Link, trials: str | None = None
) -> PendingPages:
    """Artifacts and tags to be sent now.

    While the search runs: a description with each new report, and a report that is ten minutes newer than MLflow's.
    After its end: any newer report, and the figures. With `is_last` the run is about to be ended, so description and
    figures are always sent. Raises OSError and ValueError where the report cannot be read, and errors of drawing.
    """
    written_at = _written_at(folder.report)
    if not is_last and written_at in (None, sent.described_at or sent.report):
        return PendingPages(described_at=sent.described_at)

    # Imported here, since templates and plotly.js would slow every start of the command line.
    from dashboards.mlflow.description import search_description
    from dashboards.report.data import report_data
    from dashboards.report.figures.standalone_page import figure_pages

    data = report_data(search, search.created_at if written_at is None else utc_seconds(written_at))
    tags = runs.note_tags(search_description(data, link, trials))
    figures = figure_pages(data) if search.state.is_ended else {}
    texts = {f"figures/{key}.html": page for key, page in figures.items()}
    if written_at is not None and _is_due(written_at, sent.report, 0.0 if search.state.is_ended else REPORT_PAUSE_S):
        texts["report.html"], tags[runs.REPORT] = _read(folder.report)
    return PendingPages(texts, tags, written_at)


def _written_at(report: Path) -> str | None:
    """Time at which the report was written; None without one."""
    try:
        return utc_text(os.lstat(report).st_mtime)
    except FileNotFoundError:
        return None


def _is_due(written_at: str, sent_at: str | None, pause_s: float) -> bool:
    """True if the report has to be sent; an older one than was sent comes from a restored folder, and counts."""
    if sent_at is None:
        return True
    return written_at != sent_at and not 0 <= utc_seconds(written_at) - utc_seconds(sent_at) < pause_s


def _read(report: Path) -> tuple[str, str]:
    """Report and its time of writing, which may be newer than the one checked before."""
    with open_plain(report) as stream:
        return stream.read().decode("utf-8"), utc_text(os.fstat(stream.fileno()).st_mtime)
