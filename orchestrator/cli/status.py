"""`parlay status`: the state of a search, or a line for each search."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import log, print_result, prints_json
from trials.files.text import plural

MAX_SEARCHES = 50
"""Searches in the table: each is read with its trials."""


def status(
    search: SearchId = None,
    every: Annotated[
        bool, typer.Option("--all", help="Without SEARCH, list all searches of the ledger; with it, all its layouts.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    if every and search is None:
        _list_searches(ledger)
        return
    from orchestrator.records.lookup import find_search
    from orchestrator.service.client import driver_status

    found = find_search(search, ledger)
    driver = None
    if not found.record.state.is_ended and found.folder.exists:
        driver = driver_status(found.folder)
    if prints_json.get():
        from orchestrator.records.summary import status_of

        print_result(status_of(found.record, found.spec, found.folder, driver))
        return
    from orchestrator.cli.search_summary import print_search_summary

    is_driven = driver is not None and driver.detail is None
    print_search_summary(found.record, found.spec, found.folder, shows_all=every, is_driven=is_driven)
    if driver is not None:
        log(driver.detail or f"driver: {driver.process}")


def _list_searches(ledger: str | None) -> None:
    from dashboards.terminal.live_table import console_for
    from dashboards.terminal.searches_table import searches_table
    from orchestrator.records.summary import searches_of
    from trials.ledger.location import ledger_to_read
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_to_read(ledger))) as reader:
        searches = reader.searches()
        shown = [] if prints_json.get() else [reader.search(found.search_id) for found in searches[:MAX_SEARCHES]]
    if shown:
        console_for(sys.stdout).print(searches_table(shown, time.time()))
    older = len(searches) - len(shown)
    words = f"{plural(older, 'older search')}: parlay status --all --json" if older else None
    print_result(searches_of(searches), words if shown else "no search yet")
