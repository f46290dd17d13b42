"""`parlay cancel`: ends a search and its trials in flight."""

from __future__ import annotations

from orchestrator.cli.endings import resumable
from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from trials.files.text import plural


def cancel(search: SearchId = None, ledger: LedgerUrl = None) -> None:
    from orchestrator.lifecycle.cancel import cancel_search
    from orchestrator.records.lookup import find_own_search

    found = find_own_search(search, ledger)
    with resumable(found.folder):
        done = cancel_search(found)
    count = len(done.cancelled)
    words = f"{plural(count, 'trial')} {'was' if count == 1 else 'were'}" if count else "no trial was"
    print_result(done, f"search {done.search_id} is {done.state}; {words} cancelled")
    if not done.is_complete:
        warn("not ended yet: " + (", ".join(done.unreached) or "its driver has not responded; try again"))
        raise Exit(ExitCode.CANCEL_INCOMPLETE)
