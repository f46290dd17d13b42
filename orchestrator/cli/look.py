"""What a search does: `parlay status`, the output of a trial's ranks by `logs`, MLflow's pages by `dashboard`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, log, print_result, prints_json
from orchestrator.lifecycle.exit_codes import ExitCode
from search_spaces.errors import ExternalError, InputError, Problem
from search_spaces.plain_file import read_plain
from trials.files.folders import links_outside
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


def logs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SEARCH] TRIAL",
            help="TRIAL: t0001 (its last attempt) or t0001.a1. SEARCH: the search's id or folder; default: the newest"
            " search.",
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Print the whole log of this rank.")] = None,
    ledger: LedgerUrl = None,
) -> None:
    from dashboards.trial_text import advice_after, describe_failure
    from orchestrator.records.lookup import find_attempt, find_search
    from orchestrator.records.summary import logs_of
    from trials.failure_policy import policy_of

    search, trial = _search_and_trial(names or ())
    found = find_search(search, ledger)
    which, attempt = find_attempt(found.record, trial)
    folder = found.folder.attempt(which.trial, attempt.attempt)
    if links_outside(folder.path, found.folder.path):
        raise ExternalError(f"a link in {folder.path} leads out of the search's folder", "check where the link points")
    data = logs_of(attempt, folder, None if rank is None else _read_log(folder.rank_log(rank)))
    reason = f" ({policy_of(attempt.reason).label})" if attempt.reason else ""
    limit_gib = found.spec.measure.memory_limit_gib
    heading = [f"{which.trial}.{attempt.attempt}: {attempt.state}{reason}"]
    if words := describe_failure(attempt, limit_gib):
        heading.append(words)
    if advice := advice_after(attempt.reason, [attempt], limit_gib):
        heading.append(f"to try: {advice}")
    print_result(data, "\n".join([*heading, *data.files, "", data.excerpt or "(nothing was written)"]))


def _search_and_trial(names: Sequence[str]) -> tuple[str | None, str]:
    """The search, None for the newest, and the trial, in whichever order they were typed."""
    trials = [name for name in names if re.fullmatch(r"t[0-9]{4,9}(\.a[0-9]{1,9})?", name)]
    searches = [name for name in names if name not in trials]
    if len(trials) == 1 and len(searches) <= 1:
        return (*searches, None)[0], trials[0]
    known = [name for name in searches if not re.fullmatch(r"t[0-9]*", name)]
    fix = f"parlay logs {(*known, 'SEARCH')[0]} {(*trials, 't0001')[0]}"
    message, rule = f"{' '.join(names)!r} names no trial of one search", "a trial is t0001 or t0001.a1"
    raise InputError.of("usage", message, key="TRIAL", rule=rule, fix=fix)


def _read_log(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace")
    except ValueError as error:
        raise ExternalError(str(error), f"read the file directly: {path}") from error
    except FileNotFoundError:
        message, fix = f"there is no log {path.name}", "leave --rank out to list the logs"
        raise InputError.of("unknown_id", message, value=str(path), key="--rank", fix=fix) from None


def dashboard(
    uri: Annotated[str | None, typer.Option("--mlflow-uri", help="Tracking store; default: Parlay's own.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port on loopback; default: a free one.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Only print an address of the running dashboard, valid once.")
    ] = False,
) -> None:
    from dashboards.mlflow.backend_store import tracking_uri
    from dashboards.mlflow.server import ServerFailed, page_address, show_dashboard
    from orchestrator.service.state_dir import DashboardAnswer, PageAnswer
    from trials.ledger.location import home_folder

    home = home_folder()
    if page:
        address = page_address(home, port, time.time())
        print_result(PageAnswer(address=address), address)
        return
    try:
        show_dashboard(tracking_uri(uri, home), home, log, port)
    except ServerFailed as error:
        raise Exit(ExitCode.REFUSED, Problem("mlflow", str(error))) from error
    except KeyboardInterrupt:
        print_result(DashboardAnswer(uri=tracking_uri(uri, home)))
