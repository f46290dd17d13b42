"""Events of a search, each as one line. Pure."""

from __future__ import annotations

from dashboards.fabric_check_text import describe_fabric_check
from dashboards.terminal.headline import describe_end_reason, format_throughput
from dashboards.terminal.progress import format_node_hours
from dashboards.text import cut_word, printable
from dashboards.trial_text import describe_failure, failure_cause, layout_name
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.short_name import varying_axes
from trials.analysis.verdict import display_state, has_stopped_early
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.trial import Attempt, Outcome, TrialKind, TrialState, utc_text

_LONGEST_REMARK = 160
_ATTEMPT_EVENTS = (
    EventKind.ATTEMPT_LAUNCHED,
    EventKind.ATTEMPT_RUNNING,
    EventKind.ATTEMPT_UNKNOWN,
    EventKind.ATTEMPT_WAITS,
    EventKind.ATTEMPT_REQUEUED,
    EventKind.ATTEMPT_ENDED,
)


def event_line(event: Event, search: SearchRecord) -> str | None:
    """Event as one line with its UTC time; None for events without a line. `search` is the record after it."""
    text = _describe_event(event, search)
    return None if text is None else f"{utc_text(event.at)[11:19]} {printable(text)}"


def _describe_event(event: Event, search: SearchRecord) -> str | None:
    data = event.data
    if event.kind is EventKind.SEARCH_CREATED:
        return f"search {search.search_id} created"
    if event.kind is EventKind.SEARCH_STATE:
        return f"search {_describe_search_state(search)}{_remark(search.detail)}"
    if event.kind is EventKind.BEST_CHANGED:
        return f"{data['trial']} leads so far" if data["trial"] else "no trial leads any more"
    if event.kind is EventKind.PILOT_SUBMITTED:
        return f"pilot {data['pilot']} submitted; {format_node_hours(search)}"
    if event.kind is EventKind.PILOT_ENDED:
        return f"pilot {data['pilot']} ended; the search so far: {format_node_hours(search)}"
    if event.kind is EventKind.FABRIC_CHECK:
        return "; ".join(describe_fabric_check(search))
    if event.kind is EventKind.DRIVER_TOOK_OVER:
        return f"process {data['pid']} on {data['host']} is now the driver"
    if event.kind is EventKind.TRIAL_PROPOSED:
        trial = search.trial(data["trial"])
        if trial.kind is TrialKind.CHECK:
            return f"{trial.trial} proposed: the fabric check, on {plural(trial.layout.num_nodes, 'node')}"
        kind = " as a repeat" if trial.kind is TrialKind.REPEAT else ""
        varying = varying_axes([known.layout for known in search.trials])
        return f"{trial.trial} proposed{kind}: {layout_name(trial.layout, varying)}"
    if event.kind in _ATTEMPT_EVENTS:
        text = _describe_attempt_event(event, search)
        return None if text is None else f"{data['trial']}.{data['attempt']} {text}"
    return None


def _describe_search_state(search: SearchRecord) -> str:
    state = display_state(search.state, search.end_reason)
    if search.end_reason is None:
        return str(state)
    reason = describe_end_reason(search.end_reason)
    # "cancelled (cancelled by the user)" would say it twice.
    return reason if reason.startswith(state) else f"{state} ({reason})"


def _attempt_of(event: Event, search: SearchRecord) -> Attempt:
    trial = search.trial(event.data["trial"])
    return next(a for a in trial.attempts if a.attempt == event.data["attempt"])


def _describe_attempt_event(event: Event, search: SearchRecord) -> str | None:
    attempt = _attempt_of(event, search)
    is_step = "." in (attempt.job_id or "")  # a step of a pilot runs as soon as it has an id
    if event.kind is EventKind.ATTEMPT_LAUNCHED:
        return None if is_step else " as ".join(filter(None, ["queued", attempt.job_id]))
    if event.kind is EventKind.ATTEMPT_RUNNING:
        known = f" as {attempt.job_id}" if is_step else ""
        return f"running{known}" + (" on " + " ".join(attempt.nodes) if attempt.nodes else "")
    if event.kind is EventKind.ATTEMPT_UNKNOWN:
        return "unreachable" if attempt.unknown_since is not None else "reachable again"
    if event.kind is EventKind.ATTEMPT_WAITS:
        waits_for = event.data["waits_for"]
        return None if waits_for is None else f"{attempt.state}: {waits_for}"
    if event.kind is EventKind.ATTEMPT_REQUEUED:
        return "requeued"
    return _describe_attempt_end(attempt, search)


def _describe_attempt_end(attempt: Attempt, search: SearchRecord) -> str:
    outcome = attempt.outcome
    if attempt.state is TrialState.MEASURED and outcome is not None and outcome.metrics is not None:
        metrics, flags = outcome.metrics, outcome.flags
        memory = metrics.peak_memory_gib
        parts = [f"{format_throughput(metrics)} tokens/s", f"{metrics.step_time_s:.4g} s a step"]
        parts += [] if memory is None else [f"{memory:.4g} GiB"]
        headroom = MemoryHeadroom.of_search(search.spec)
        if headroom is not None and not headroom.is_satisfied(memory):
            parts[-1] += f"; {headroom.describe(memory)}"
        return "measured: " + ", ".join(parts) + (f"; flagged {', '.join(flags)}" if flags else "")
    limit_gib = (search.spec.get("measure") or {}).get("memory_limit_gib")
    return _describe_failed_state(attempt) + _remark(describe_failure(attempt, limit_gib) or attempt.excerpt)


def _describe_failed_state(attempt: Attempt) -> str:
    if attempt.reason is None or has_stopped_early(attempt):
        return "stopped early" if attempt.reason else str(attempt.state)
    label = policy_of(attempt.reason).label
    # "cancelled, cancelled by the user" would say it twice.
    return label if label.startswith(attempt.state) else f"{attempt.state}, {label}"


def measured_by(event: Event, search: SearchRecord) -> Outcome | None:
    """Outcome of the attempt that was measured with this event; None for other events."""
    if event.kind is not EventKind.ATTEMPT_ENDED:
        return None
    attempt = _attempt_of(event, search)
    return attempt.outcome if attempt.state is TrialState.MEASURED else None


def _remark(excerpt: str | None) -> str:
    """Cause of a failure, after a colon."""
    line = failure_cause(excerpt or "")
    return f": {cut_word(line, _LONGEST_REMARK)}" if line else ""
