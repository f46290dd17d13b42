"""`parlay cancel`: ends a search and its trials in flight."""

from __future__ import annotations

from orchestrator.cli.driver_errors import exit_on_driver_errors
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.common.exit_codes import ExitCode
from trials.files.text import plural


def cancel(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """End a search and its trials in flight."""
    from orchestrator.lifecycle.cancel import cancel_search
    from orchestrator.records.lookup import find_own_search

    found = find_own_search(search, ledger)
    with exit_on_driver_errors(found.folder, as_json):
        done = cancel_search(found)
    words = _format_cancelled(len(done.cancelled))
    print_result(done, as_json, f"search {done.search_id} is {done.state}; {words}")
    if not done.is_complete:
        warn("not ended yet: " + (", ".join(done.unreached) or "its driver has not responded; try again"))
        raise Exit(ExitCode.CANCEL_INCOMPLETE)


def _format_cancelled(count: int) -> str:
    if count == 0:
        return "no trial was cancelled"
    return f"{plural(count, 'trial')} {'was' if count == 1 else 'were'} cancelled"
