"""`parlay ledger rebuild`: the ledger's rows, rebuilt from the journals in the folders of searches."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.cli.verbs import Verb, group
from orchestrator.lifecycle.exit_codes import ExitCode

commands = group("ledger")


@commands.command(cls=Verb)
def rebuild(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="[FOLDER]...", help="Folders of searches, or folders above them.")
    ] = None,
    work_dir: Annotated[Path, typer.Option("--work-dir", help="Folder with searches, if none is given.")] = Path(
        "runs"
    ),
    ledger: LedgerUrl = None,
) -> None:
    """Rebuild the ledger's rows from the journals in the folders of searches; a damaged ledger is put aside first."""
    from orchestrator.records.ledger_rebuild import LedgerAnswer, find_search_folders
    from orchestrator.records.ledger_rebuild import rebuild as rebuild_one
    from trials.ledger.database import put_aside_damaged
    from trials.ledger.location import ledger_url
    from trials.ledger.reader import LedgerReader
    from trials.ledger.writer import LedgerWriter

    url = ledger_url(ledger)
    searches = find_search_folders(folders or [work_dir])
    if (aside := put_aside_damaged(url)) is not None:
        warn(f"the ledger was damaged: it is kept as {aside}, and rebuilt from these folders")
    with closing(LedgerWriter(url, may_rebuild=True)) as writer, closing(LedgerReader(url)) as reader:
        done = [rebuild_one(folder, writer, reader) for folder in searches]
    lines = [f"{one.search_id}  {one.result}  {one.num_events} events  {one.folder}" for one in done]
    kept = None if aside is None else str(aside)
    print_result(LedgerAnswer(url=url, put_aside=kept, searches=done), "\n".join(lines))
    for search in done:
        if search.message is not None:
            warn(search.message)
    results = {search.result.value for search in done}
    if "damaged" in results:
        raise Exit(ExitCode.REFUSED)
    if "held" in results:
        raise Exit(ExitCode.HELD_BY_ANOTHER)
