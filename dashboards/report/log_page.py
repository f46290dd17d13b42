"""Pages of the service about logs: the trials of a search, and the end of a rank's log, which follows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboards.report.html import Page, html_page, package_file
from dashboards.text import printable, printable_lines
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.short_name import short_name
from trials.failure_policy import policy_of
from trials.files.text import without_escapes
from trials.trial import Attempt, FailureReason, Trial

_STYLES = ("page.css", "service.css")
MAX_RANKS = 64
"""Ranks with a link each; others are opened by their number in the address."""


@dataclass(frozen=True)
class LiveLog:
    """End of the log of a rank of an attempt; `text` is None without one. `ranks` have a log."""

    trial: Trial
    attempt: Attempt
    rank: int
    ranks: tuple[int, ...]
    text: str | None


def trials_page(search_id: str, trials: Sequence[Mapping[str, Any]]) -> Page:
    """List of the trials with an attempt, the newest first, each with a link to its log; as the contract has them."""
    rows = [_trial_row(trial) for trial in reversed(trials) if trial["attempts"]]
    return html_page(
        "trials.html.jinja",
        f"{search_id}: logs",
        (package_file("follow.js"),),
        asks_service=True,
        styles=_STYLES,
        search_id=search_id,
        rows=rows,
    )


def log_page(search_id: str, log: LiveLog) -> Page:
    """The end of a log, read anew while the attempt runs."""
    text = None if log.text is None else printable_lines(without_escapes(log.text))
    return html_page(
        "log.html.jinja",
        f"{search_id}: {log.trial.trial}, rank {log.rank}",
        (package_file("follow.js"),),
        asks_service=True,
        styles=_STYLES,
        search_id=search_id,
        log=log,
        layout=short_name(log.trial.layout),
        state=_state_text(log.attempt.state.value, log.attempt.reason),
        is_ended=log.attempt.state.is_ended,
        ranks=log.ranks[:MAX_RANKS],
        has_more_ranks=len(log.ranks) > MAX_RANKS,
        text=text,
    )


def _trial_row(trial: Mapping[str, Any]) -> dict[str, str]:
    last = trial["attempts"][-1]
    reason = trial["reason"] or last["reason"]
    return {
        "trial": trial["trial"],
        "layout": short_name(Layout.from_json(trial["layout"])),
        "state": _state_text(str(last["state"] if trial["reason"] is None else trial["state"]), reason),
        "nodes": printable(" ".join(last["nodes"][:4]) + (" ..." if len(last["nodes"]) > 4 else "")),
    }


def _state_text(state: str, reason: str | None) -> str:
    return state.replace("_", " ") + ("" if reason is None else f": {policy_of(FailureReason(reason)).label}")
