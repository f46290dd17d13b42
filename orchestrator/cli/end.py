"""After a search: `parlay cancel`, and `sync`, which sends it to MLflow again."""

from __future__ import annotations

from orchestrator.cli.endings import resumable
from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, print_result, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import Problem
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


def sync(search: SearchId = None, ledger: LedgerUrl = None) -> None:
    from orchestrator.lifecycle.mlflow_resync import resync
    from orchestrator.lifecycle.observers import open_tracking
    from orchestrator.records.lookup import find_own_search
    from orchestrator.search.lease import LeaseHeld

    found = find_own_search(search, ledger)
    name = found.folder.search_id
    tracking = open_tracking(found.spec)
    if tracking is None:
        fix = f"parlay report {found.folder.cli_name} shows it without MLflow; tracking.enabled is for new searches"
        message = f"search {name} has tracking disabled"
        problem = Problem("tracking", message, fix=fix, key="tracking.enabled", value=False)
        raise Exit(ExitCode.BAD_INPUT, problem)
    try:
        sent = resync(found.folder, tracking)
    except LeaseHeld as held:
        problem = Problem("held", str(held), fix="its driver writes to MLflow itself; wait for its end")
        raise Exit(ExitCode.HELD_BY_ANOTHER, problem) from held
    print_result(sent, f"{sent.sent} runs of search {name} are up to date in MLflow")
    if sent.unsent:
        warn(f"not sent: {', '.join(sent.unsent)}; `parlay sync {found.folder.cli_name}` tries again")
        raise Exit(ExitCode.REFUSED)
