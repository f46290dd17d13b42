"""`parlay cancel`: ends a search and what it has in flight."""

from __future__ import annotations

from orchestrator.cli.driver_errors import explained
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, answer, say
from trials.files.text import counted


def cancel(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """End a search and everything it has in flight."""
    from orchestrator.lifecycle.cancel import cancel_search
    from orchestrator.records.lookup import find_search

    found = find_search(search, ledger)
    with explained(found.folder, as_json):
        done = cancel_search(found, say)
    record, words = done.record, _cancelled_words(len(done.cancelled))
    answer(done.to_json(), as_json, f"search {record.search_id} is {record.state}; {words}")
    if not done.is_complete:
        say("not ended yet: " + (", ".join(done.unreached) or "its driver has not answered; try again"))
        raise Exit(ExitCode.CANCEL_INCOMPLETE)


def _cancelled_words(count: int) -> str:
    if count == 0:
        return "no trial was cancelled"
    return f"{counted(count, 'trial')} {'was' if count == 1 else 'were'} cancelled"
