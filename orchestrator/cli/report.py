"""`parlay report`: a search as one HTML file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import print_result
from orchestrator.records.output_file import write_new


def report(
    search: SearchId = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A new file; default: report.html in the search's folder, overwritten."),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    from dashboards.report.write import report_text, write_report
    from orchestrator.records.lookup import find_search
    from orchestrator.records.summary import ReportAnswer

    found = find_search(search, ledger)
    path = output or found.folder.report
    if output is None:
        write_report(found.record, found.folder, time.time())
    else:
        write_new(path, report_text(found.record, found.folder, time.time()), "--output")
    print_result(ReportAnswer(search_id=found.record.search_id, file=str(path)), str(path))
