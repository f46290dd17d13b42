"""Events of a search that are due for a notification, each with a sentence. Pure."""

from __future__ import annotations

from dashboards.terminal.headline import best_layout_line, best_layout_name, headline
from dashboards.terminal.progress import format_clock, limit_usages
from orchestrator.schema.notify import NotifyEvent, NotifySection
from trials.analysis.verdict import VerdictKind, baseline_key_of, ranking_of, verdict_of
from trials.files.text import plural
from trials.ledger.events import SearchRecord

BUDGET_SHARE = 0.75
"""Used share of a limit from which the event `budget` is notified."""


def event_message(event: NotifyEvent, search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    """Sentence about the event; None while it has not happened. `now` is UTC seconds since the epoch."""
    if event is NotifyEvent.END:
        return _end_message(search) if search.state.is_ended else None
    if search.state.is_ended:
        return None
    return {
        NotifyEvent.STALL: _stall_message,
        NotifyEvent.BUDGET: _budget_message,
        NotifyEvent.SPEEDUP: _speedup_message,
    }[event](search, notify, now)


def last_progress_at(search: SearchRecord) -> float:
    """Time of the last end of a trial, else of the search's creation; UTC seconds since the epoch."""
    ends = (trial.last_attempt.ended_at for trial in search.trials if trial.state.is_ended and trial.last_attempt)
    return max([search.created_at, *(end for end in ends if end is not None)])


def _end_message(search: SearchRecord) -> str:
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    return f"{search.search_id} is {verdict.state.value}; {best_layout_line(verdict)}"


def _stall_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    passed = now - last_progress_at(search)
    if passed < notify.stall_after_s:
        return None
    return (
        f"{search.search_id}: no trial has ended for {format_clock(passed)}"
        f" ({plural(len(search.in_flight), 'trial')} in flight, {len(search.trials)} so far)"
    )


def _budget_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    for usage in limit_usages(search, now):
        is_unused = usage.name == "layouts" and (search.spec.get("search") or {}).get("against") is not None
        if not is_unused and usage.used >= BUDGET_SHARE * usage.limit:
            return f"{search.search_id}: three quarters of a limit are used: {usage.name} {usage.text}"
    return None


def _speedup_message(search: SearchRecord, notify: NotifySection, now: float) -> str | None:
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    if verdict.kind is not VerdictKind.FASTER or verdict.speedup is None or verdict.best is None:
        return None
    if verdict.speedup.ratio < notify.speedup:
        return None
    return f"{search.search_id}: {headline(verdict)}; {verdict.best.trial} ({best_layout_name(verdict)})"
