"""Rows of the service's list of searches. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dashboards.report.setup import cluster_size, model_size
from dashboards.terminal.headline import against_baseline, describe_ending
from dashboards.terminal.searches_table import format_age
from dashboards.text import printable
from dashboards.trial_text import format_number, layout_name
from search_spaces.layouts.short_name import varying_axes
from trials.analysis.verdict import DisplayState, baseline_key_of, ranking_of, verdict_of
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

    def age(self, now: float) -> str:
        """Time since its creation; `now` is UTC seconds since the epoch."""
        return format_age(now - self.created_at)


def search_row(search: SearchRecord, owner: str) -> SearchListRow:
    """The row of a search, without what a service knows of its driver."""
    verdict = verdict_of(search, ranking_of(search, search.trials), baseline_key_of(search))
    best = verdict.best
    return SearchListRow(
        search_id=search.search_id,
        state=verdict.state,
        reason=printable(describe_ending(verdict)),
        model=model_size(search.spec) or "",
        cluster=printable(cluster_size(search.spec) or ""),
        num_layouts=verdict.num_layouts,
        max_layouts=verdict.max_layouts,
        tokens_per_sec="" if best is None else format_number(best.measured.tokens_per_sec),
        best="" if best is None else layout_name(best.layout, varying_axes([trial.layout for trial in search.trials])),
        against_baseline=against_baseline(verdict),
        node_hours=_node_hours(search.node_hours_used),
        is_replayed=search.replayed_table is not None,
        created_at=search.created_at,
        owner=printable(owner),
    )


def _node_hours(hours: float) -> str:
    return f"{hours:.3g}" if hours >= _SMALLEST_SHOWN or not hours else f"< {_SMALLEST_SHOWN}"


_SMALLEST_SHOWN = 0.001
