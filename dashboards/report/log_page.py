"""Pages of the service about logs: the trials of a search, and the end of a rank's log, which follows it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dashboards.report.html import Page, html_page
from dashboards.text import printable, printable_lines
from dashboards.trial_text import layout_name
from search_spaces.layouts.short_name import varying_axes
from trials.failure_policy import policy_of
from trials.files.text import without_escapes
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Trial

_STYLES = ("page.css", "service.css")
MAX_RANKS = 64
"""Ranks with a link each; others are opened by their number in the address."""


@dataclass(frozen=True)
class LiveLog:
    """End of the log of a rank of an attempt of `search`; `text` is None without one. `ranks` have a log."""

    search: SearchRecord
    trial: Trial
    attempt: Attempt
    rank: int
    ranks: tuple[int, ...]
    text: str | None


def trials_page(search: SearchRecord) -> Page:
    """List of the trials with an attempt, the newest first, each with a link to its log."""
    varying = _varying(search)
    rows = [_trial_row(trial, varying) for trial in reversed(search.trials) if trial.attempts]
    return html_page(
        "trials.html.jinja",
        f"{search.search_id}: logs",
        ("follow.js",),
        asks_service=True,
        styles=_STYLES,
        search_id=search.search_id,
        rows=rows,
        has_nodes=any(row["nodes"] for row in rows),
        is_ended=search.state.is_ended,
    )


def log_page(log: LiveLog) -> Page:
    """The end of a log, read anew while the attempt runs."""
    search_id = log.search.search_id
    text = None if log.text is None else printable_lines(without_escapes(log.text))
    return html_page(
        "log.html.jinja",
        f"{search_id}: {log.trial.trial}, rank {log.rank}",
        ("follow.js",),
        asks_service=True,
        styles=_STYLES,
        search_id=search_id,
        log=log,
        layout=layout_name(log.trial.layout, _varying(log.search)),
        state=_state_text(log.attempt.state.value, log.attempt.reason),
        is_ended=log.attempt.state.is_ended,
        ranks=log.ranks[:MAX_RANKS],
        has_more_ranks=len(log.ranks) > MAX_RANKS,
        text=text,
    )


def _varying(search: SearchRecord) -> tuple[str, ...]:
    return varying_axes([trial.layout for trial in search.trials])


def _trial_row(trial: Trial, varying: Collection[str]) -> dict[str, str]:
    last = trial.attempts[-1]
    state, reason = (trial.state, trial.reason) if trial.reason is not None else (last.state, last.reason)
    return {
        "trial": trial.trial,
        "layout": layout_name(trial.layout, varying),
        "state": _state_text(state.value, reason),
        "nodes": printable(" ".join(last.nodes[:4]) + (" ..." if len(last.nodes) > 4 else "")),
    }


def _state_text(state: str, reason: FailureReason | None) -> str:
    return state.replace("_", " ") + ("" if reason is None else f": {policy_of(reason).label}")
