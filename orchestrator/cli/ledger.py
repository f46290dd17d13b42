"""Verbs that keep what tells of searches in order: ledger rebuild, sync."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, answer, fail, say
from search_spaces.errors import Problem

LEDGER_SCHEMA = "parlay.ledger/1"
SYNC_SCHEMA = "parlay.sync/1"

_ledger = typer.Typer(help="Keep the ledger, the database of all searches.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    app.add_typer(_ledger, name="ledger")
    app.command()(sync)


@_ledger.command()
def rebuild(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Searches, or folders with searches below them.")
    ] = None,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Where searches lie, if no folder is named.")] = Path(
        "runs"
    ),
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make the ledger's rows anew from the journals in the folders of searches; a damaged ledger is put aside first."""
    from orchestrator.records.ledger_rebuild import rebuild as rebuild_one
    from orchestrator.records.ledger_rebuild import searches_in
    from trials.ledger.database import put_aside_damaged
    from trials.ledger.place import ledger_url
    from trials.ledger.reader import LedgerReader
    from trials.ledger.writer import LedgerWriter

    url = ledger_url(ledger)
    searches = searches_in(folders or [work_dir])
    if (aside := put_aside_damaged(url)) is not None:
        say(f"the ledger was damaged: it is kept as {aside}, and made anew from these folders")
    with closing(LedgerWriter(url)) as writer, closing(LedgerReader(url)) as reader:
        done = [rebuild_one(folder, writer, reader) for folder in searches]
    rows = [search.to_json() for search in done]
    lines = [f"{r['search_id']}  {r['result']}  {r['num_events']} events  {r['folder']}" for r in rows]
    kept = None if aside is None else str(aside)
    answer({"schema": LEDGER_SCHEMA, "url": url, "put_aside": kept, "searches": rows}, as_json, "\n".join(lines))
    for search in done:
        if search.message is not None:
            say(search.message)
    results = {search.result.value for search in done}
    if "damaged" in results:
        raise Exit(ExitCode.REFUSED)
    if "held" in results:
        raise Exit(ExitCode.HELD_BY_ANOTHER)


def sync(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Send to MLflow what it did not take while the search ran; as often as you like, nothing is there twice."""
    from orchestrator.lifecycle.drive import open_tracking
    from orchestrator.lifecycle.mlflow_resync import send_again
    from orchestrator.records.lookup import find_search
    from orchestrator.search.lease import LeaseHeld

    found = find_search(search, ledger)
    name = found.folder.search_id
    tracking = open_tracking(found.spec, say)
    if tracking is None:
        fix = f"parlay report {found.folder.called} shows it without MLflow; tracking.enabled: true is for a new search"
        message = f"search {name} was not to be tracked"
        problem = Problem("tracking", message, fix=fix, key="tracking.enabled", value=False)
        fail(ExitCode.BAD_INPUT, problem, as_json)
    try:
        sent = send_again(found.folder, tracking, say)
    except LeaseHeld as held:
        problem = Problem("held", str(held), fix="its driver sends to MLflow itself; wait for its end")
        fail(ExitCode.HELD_BY_ANOTHER, problem, as_json)
    data = {"schema": SYNC_SCHEMA, "search_id": name, "uri": tracking.uri, "run_id": sent.run_id}
    counts = {"sent": sent.num_sent, "unsent": list(sent.unsent)}
    answer(data | counts, as_json, f"{sent.num_sent} runs of search {name} are in MLflow as they are in its journal")
    if sent.unsent:
        say(f"not sent: {', '.join(sent.unsent)}; `parlay sync {found.folder.called}` tries again")
        raise Exit(ExitCode.REFUSED)
