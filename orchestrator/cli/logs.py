"""`parlay logs`: the output of a trial's ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import LedgerUrl
from orchestrator.cli.output import print_result
from search_spaces.errors import ExternalError, InputError
from search_spaces.plain_file import read_plain
from trials.files.folders import links_outside


def logs(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[SEARCH] TRIAL",
            help="TRIAL: t0001 (its last attempt) or t0001.a1. SEARCH: the search's id or folder; default: the newest"
            " search.",
        ),
    ],
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Print the whole log of this rank.")] = None,
    ledger: LedgerUrl = None,
) -> None:
    from dashboards.trial_text import advice_after, describe_failure
    from orchestrator.records.lookup import find_attempt, find_search
    from orchestrator.records.summary import logs_of
    from trials.failure_policy import policy_of

    search, trial = _search_and_trial(names)
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
    fix = f"parlay logs {(*searches, 'SEARCH')[0]} {(*trials, 't0001')[0]}"
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
