"""Verbs that look at a search and at what it found: status, best, logs, dashboard."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import answer, fail, say
from search_spaces.errors import InputError, OutsideRefused, Problem
from search_spaces.plain_file import read_plain
from trials.files.folders import leads_out
from trials.files.text import counted

DASHBOARD_SCHEMA = "parlay.dashboard/1"


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    for verb in (status, best, logs, dashboard):
        app.command()(verb)


def status(
    search: SearchId = None,
    every: Annotated[bool, typer.Option("--all", help="One line for each search of the ledger.")] = False,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show where a search stands."""
    if every:
        _list_searches(ledger, as_json)
        return
    from orchestrator.cli.search_summary import show_search
    from orchestrator.cli.watch import seen_driver, who_drives
    from orchestrator.records.lookup import find_search
    from orchestrator.records.summary import search_summary

    found = find_search(search, ledger)
    spec = found.spec
    summary = search_summary(found.record, spec, found.folder)
    answer(summary, as_json)
    if not as_json:
        show_search(found.record, spec, found.folder)
    if found.record.state.is_ended or not found.folder.is_one:
        return
    if (words := seen_driver(found.folder, who_drives).words) is not None:
        say(words)


def best(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Print the best layout of a search and where its recipe lies."""
    from dashboards.trial_text import describe_flag, describe_step_time
    from orchestrator.records.lookup import find_search, missing_recipe_reason
    from orchestrator.records.summary import answer_of, best_summary
    from trials.analysis.pareto import trades

    found = find_search(search, ledger)
    spec = found.spec
    ranking = spec.ranking_of(found.record.trials)
    data = best_summary(found.record, spec, found.folder)
    if data is None:
        why, name = answer_of(found.record, spec), found.record.search_id
        fix = f"parlay status {found.folder.called} shows what became of it"
        problem = Problem("no_measurement", f"search {name}: {why}", fix=fix)
        fail(ExitCode.NO_MEASUREMENT, problem, as_json)
    lines = [answer_of(found.record, spec), *trades(ranking), describe_step_time(data)]
    lines += map(describe_flag, data["flags"])
    lines.append(f"recipe: {data['recipe'] or missing_recipe_reason(found)}")
    answer(data, as_json, "\n".join(filter(None, lines)))


def logs(
    trial: Annotated[str, typer.Argument(help="t0001 (its last attempt) or t0001.a1.")],
    search: Annotated[
        str | None, typer.Option("--search", help="The search's id or folder; the newest if absent.")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Print the whole log of this rank.")] = None,
    ledger: LedgerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what a trial's ranks wrote, and the first real error among it."""
    from dashboards.trial_text import describe_failure
    from orchestrator.cli.search_summary import what_to_try
    from orchestrator.records.lookup import find_attempt, find_search
    from orchestrator.records.summary import logs_summary

    found = find_search(search, ledger)
    which, attempt = find_attempt(found.record, trial)
    folder = found.folder.attempt(which.trial, attempt.attempt)
    _require_inside(folder.path, found.folder.path)
    data = logs_summary(attempt, folder, None if rank is None else _whole_log(folder.rank_log(rank)))
    heading = [f"{which.trial}.{attempt.attempt}: {attempt.state}" + (f" ({attempt.reason})" if attempt.reason else "")]
    if words := describe_failure(attempt, found.spec.measure.memory_limit_gib):
        heading.append(words)
    if advice := what_to_try(attempt.reason, found.spec):
        heading.append(f"to try: {advice}")
    answer(data, as_json, "\n".join([*heading, *data["files"], "", data["excerpt"] or "(nothing was written)"]))


def dashboard(
    uri: Annotated[str | None, typer.Option("--mlflow-uri", help="Another tracking store than the default.")] = None,
    port: Annotated[int | None, typer.Option("--port", min=1, max=65535, help="Port on loopback; a free one.")] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Print an address of a running dashboard's pages, which opens once; no more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Open MLflow's UI on what was recorded, on this machine's loopback, for you alone, until ctrl-C."""
    from dashboards.access.token import page_address
    from dashboards.mlflow.backend_store import tracking_uri
    from dashboards.mlflow.server import ServerFailed, show_dashboard
    from orchestrator.cli.serve import PAGE_SCHEMA
    from trials.ledger.place import home_folder

    home = home_folder()
    if page:
        address = page_address(home, port, time.time())
        answer({"schema": PAGE_SCHEMA, "address": address}, as_json, address)
        return
    try:
        show_dashboard(tracking_uri(uri, home), home, say, port)
    except ServerFailed as error:
        fail(ExitCode.REFUSED, Problem("mlflow", str(error)), as_json)
    except KeyboardInterrupt:
        answer({"schema": DASHBOARD_SCHEMA, "uri": tracking_uri(uri, home)}, as_json)


def _list_searches(ledger: str | None, as_json: bool) -> None:
    from orchestrator.records.summary import searches_summary
    from trials.analysis.verdict import shown_state
    from trials.ledger.place import ledger_to_read
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_to_read(ledger))) as reader:
        searches = reader.searches()
    states = {s.search_id: shown_state(s.state, s.end_reason) for s in searches}
    lines = [f"{s.search_id}  {states[s.search_id]}  {counted(s.num_trials, 'trial')}  {s.folder}" for s in searches]
    answer(searches_summary(searches), as_json, "\n".join(lines) or "no search yet")


def _require_inside(folder: Path, search: Path) -> None:
    if leads_out(folder, search):
        raise OutsideRefused(f"a link leads from {folder} out of the search's folder", "look where it leads, and why")


def _whole_log(path: Path) -> str:
    try:
        return read_plain(path).decode(errors="replace")
    except ValueError as error:
        raise OutsideRefused(str(error), f"look at the file itself: {path}") from error
    except FileNotFoundError:
        message, fix = f"there is no log {path.name}", "leave --rank out: the logs that there are are listed then"
        raise InputError.of("unknown_id", message, value=str(path), key="--rank", fix=fix) from None
