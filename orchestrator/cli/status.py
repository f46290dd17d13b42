"""`parlay status`: the state of a search, or a line for each search."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import log, print_result
from trials.files.text import plural


def status(
    search: SearchId = None,
    every: Annotated[
        bool, typer.Option("--all", help="Without SEARCH, list all searches of the ledger; with it, all its layouts.")
    ] = False,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a search."""
    if every and search is None:
        _list_searches(ledger, as_json)
        return
    from orchestrator.cli.search_summary import print_search_summary
    from orchestrator.cli.watch import driver_status, read_driver_status
    from orchestrator.records.lookup import find_search
    from orchestrator.records.summary import search_summary

    found = find_search(search, ledger)
    spec = found.spec
    summary = search_summary(found.record, spec, found.folder)
    print_result(summary, as_json)
    if not as_json:
        print_search_summary(found.record, spec, found.folder, shows_all=every)
    if found.record.state.is_ended or not found.folder.exists:
        return
    if (words := read_driver_status(found.folder, driver_status).description) is not None:
        log(words)


def _list_searches(ledger: str | None, as_json: bool) -> None:
    from orchestrator.records.summary import searches_summary
    from trials.analysis.verdict import display_state
    from trials.ledger.location import ledger_to_read
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_to_read(ledger))) as reader:
        searches = reader.searches()
    states = {s.search_id: display_state(s.state, s.end_reason) for s in searches}
    lines = [f"{s.search_id}  {states[s.search_id]}  {plural(s.num_trials, 'trial')}  {s.folder}" for s in searches]
    print_result(searches_summary(searches), as_json, "\n".join(lines) or "no search yet")
