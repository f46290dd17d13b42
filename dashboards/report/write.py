"""Report file: from a search's record to report.html in its folder."""

from __future__ import annotations

from dashboards.report.page import report_page
from dashboards.report.use_it import use_it
from dashboards.search_view import SearchView
from trials.files.folders import SearchFolder, write_text
from trials.ledger.events import SearchRecord


def report_text(search: SearchRecord, folder: SearchFolder, at: float) -> str:
    """Report of a search's record and its recipe; `at` is now, UTC seconds since the epoch."""
    return report_page(SearchView.of(search, at), use_it(folder))


def write_report(search: SearchRecord, folder: SearchFolder, at: float) -> None:
    """Replace the report atomically; OSError where the folder cannot be written."""
    write_text(folder.report, report_text(search, folder, at))
