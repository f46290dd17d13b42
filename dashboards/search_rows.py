"""Rows of the lists of searches, in a terminal and in the service's pages. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.report.setup import cluster_size, model_size
from dashboards.search_view import SearchView, recorded_section
from dashboards.terminal.headline import against_baseline, describe_ending
from dashboards.text import printable
from dashboards.trial_text import format_number, layout_name
from trials.analysis.verdict import DisplayState, SearchVerdict, VerdictKind
from trials.failure_policy import Memory, policy_of
from trials.ledger.events import SearchRecord


@dataclass(frozen=True)
class SearchListRow:
    """Search in the list. Texts are "" where nothing is known.

    `reason` is why it ended; `against_baseline` the speedup in two parts, a number or a word and its interval;
    `stopped` is the reason why an unended search has no driver.
    """

    search_id: str
    state: DisplayState
    reason: str
    model: str
    cluster: str
    num_layouts: int
    max_layouts: int | None
    tokens_per_sec: str
    best: str
    against_baseline: tuple[str, str]
    node_hours: str
    is_replayed: bool
    created_at: float
    owner: str
    stopped: str | None = None

    @property
    def is_ended(self) -> bool:
        return self.state not in (DisplayState.CREATED, DisplayState.RUNNING, DisplayState.STOPPING)

    @property
    def has_failed(self) -> bool:
        """True for an end without a result that the user did not ask for, and where nobody drives the search any
        more."""
        return self.stopped is not None or self.state in (DisplayState.FAILED, DisplayState.REFUSED)

    def age(self, now: float) -> str:
        """Time since its creation; `now` is UTC seconds since the epoch."""
        return format_age(now - self.created_at)


def search_row(search: SearchRecord, owner: str) -> SearchListRow:
    """The row of a search, without what a service knows of its driver."""
    view = SearchView.of(search, search.created_at)
    verdict, best = view.verdict, view.best
    return SearchListRow(
        search_id=search.search_id,
        state=verdict.state,
        reason=printable(_failure(search, verdict) or describe_ending(verdict)),
        model=model_size(search.spec) or "",
        cluster=printable(cluster_size(search.spec) or ""),
        num_layouts=verdict.num_layouts,
        max_layouts=verdict.max_layouts,
        tokens_per_sec="" if best is None else format_number(best.measured.tokens_per_sec),
        best="" if best is None else layout_name(best.layout, view.varying),
        against_baseline=against_baseline(verdict),
        node_hours=_node_hours(search.node_hours_used),
        is_replayed=search.replayed_table is not None,
        created_at=search.created_at,
        owner=printable(owner),
    )


def _failure(search: SearchRecord, verdict: SearchVerdict) -> str | None:
    """Most common reason of a search in which all trials failed, with the user's memory limit; None for others."""
    if verdict.most_common_failure is None or verdict.kind is not VerdictKind.ALL_FAILED:
        return None
    reason, count, _ = verdict.most_common_failure
    limit_gib = recorded_section(search.spec, "measure").get("memory_limit_gib")
    is_limited = policy_of(reason).exceeded is Memory.ACCELERATOR and limit_gib is not None
    limit = f", limit {limit_gib:g} GiB" if is_limited else ""
    return f"{count} of {len(search.trials)} {policy_of(reason).label}{limit}"


def format_age(seconds: float) -> str:
    """Age in its largest whole unit: `3 d`, `5 h`, `12 min`, `40 s`."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _node_hours(hours: float) -> str:
    return f"{hours:.3g}" if hours >= _SMALLEST_SHOWN or not hours else f"< {_SMALLEST_SHOWN}"


_SMALLEST_SHOWN = 0.001
