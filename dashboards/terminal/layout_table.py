"""Terminal's table of layouts: its rows and their cells. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.terminal.fitting_table import Cell, FittingColumn, FittingTable
from dashboards.trial_text import format_number, format_trial_end_short
from search_spaces.layouts.short_name import short_name_words, varying_axes
from trials.analysis.ranked_layout import RankedLayout, TrialOrLayout
from trials.analysis.ranking import Objective, Ranking, upper_bound_of
from trials.outcome_types import MeasuredMetrics
from trials.trial import Trial, TrialKind

_COLUMNS = (
    FittingColumn("trial", is_number=False),
    FittingColumn("layout", is_number=False, is_shortened=True),
    FittingColumn("tokens/s"),
    FittingColumn("± %", rank=1),
    FittingColumn("step s", rank=2),
    FittingColumn("GiB", rank=3),
    FittingColumn("state", is_number=False),
)


class LayoutTable(FittingTable):
    """Rows of trials and layouts: * best, = tied with it, b baseline, r repeat, ! flagged.

    A ranked layout shows its numbers over all runs, and how many these are. `num_more` layouts are not shown. `named`
    are the trials among which the names of layouts differ.
    """

    def __init__(
        self,
        rows: Sequence[TrialOrLayout],
        ranking: Ranking,
        baseline_key: str | None,
        named: Sequence[TrialOrLayout],
        num_more: int = 0,
    ):
        varying = varying_axes([trial.layout for trial in named])
        best = [place for place, trial in enumerate(rows) if trial is ranking.best]
        super().__init__(_COLUMNS, [_cells(trial, ranking, baseline_key, varying) for trial in rows], best)
        self.num_more = num_more


def _cells(trial: TrialOrLayout, ranking: Ranking, baseline_key: str | None, varying: Sequence[str]) -> list[Cell]:
    name = f"{trial.trial} {_marks(trial, ranking, baseline_key)}".rstrip()
    return [name, short_name_words(trial.layout, varying), *_numbers(trial, ranking)]


def _marks(trial: TrialOrLayout, ranking: Ranking, baseline_key: str | None) -> str:
    rank_mark = "*" if trial is ranking.best else "=" if trial in ranking.ties else ""
    is_repeat = isinstance(trial, Trial) and trial.kind is TrialKind.REPEAT
    is_flagged = trial.measured is not None and bool(trial.flags)
    marks = {"b": trial.layout.key == baseline_key, "r": is_repeat, "!": is_flagged}
    return rank_mark + "".join(mark for mark, holds in marks.items() if holds)


def _numbers(trial: TrialOrLayout, ranking: Ranking) -> list[str]:
    metrics = trial.measured
    if metrics is None:
        assert isinstance(trial, Trial), "a ranked layout was measured"
        return _numbers_without_value(trial)
    return [
        format_number(metrics.tokens_per_sec),
        _interval(metrics),
        _three_digits(metrics.step_time_s),
        "" if metrics.peak_memory_gib is None else _three_digits(metrics.peak_memory_gib),
        _format_state(trial, ranking),
    ]


def _numbers_without_value(trial: Trial) -> list[str]:
    """Cells of a trial without a measurement: the upper bound of its throughput, where known, and its end."""
    at_most = upper_bound_of(trial, Objective.TOKENS_PER_SEC)
    bound = "" if at_most is None else f"≤ {format_number(at_most)}"
    return [bound, "", "", "", format_trial_end_short(trial)]


def _interval(metrics: MeasuredMetrics) -> str:
    """95 % interval relative to the throughput in percent; one number where symmetric."""
    low, high = metrics.tokens_per_sec_low, metrics.tokens_per_sec_high
    if low is None or high is None:
        return ""
    below, above = (_percent(abs(end / metrics.tokens_per_sec - 1)) for end in (low, high))
    return f"±{below}" if below == above else f"-{below}/+{above}"


def _three_digits(value: float) -> str:
    """Three significant digits, with their zeros: numbers below each other have their points below each other."""
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def _percent(share: float) -> str:
    """Whole percent, or one digit where that would be 0."""
    return f"{100 * share:.0f}" if share >= 0.0095 else f"{100 * share:.1g}"


def _format_state(trial: TrialOrLayout, ranking: Ranking) -> str:
    if isinstance(trial, Trial):
        return str(trial.state)
    if not ranking.has_headroom(trial):
        return "too full"
    return f"{len(trial.runs)} runs" if len(trial.runs) > 1 else str(trial.first.state)


def first_rows(
    rows: Sequence[TrialOrLayout], most: int | None, ranking: Ranking, baseline_key: str | None
) -> list[TrialOrLayout]:
    """The first `most` rows (None: all), the last of which is the baseline where it would be left out."""
    if most is None or len(rows) <= most:
        return list(rows)
    shown = list(rows[:most])
    baseline = next((row for row in rows if row.layout.key == baseline_key), None)
    if baseline is not None and baseline not in shown:
        shown[-1] = baseline
    return shown


def newest_rows(trials: Sequence[Trial], room: int, ranking: Ranking, baseline_key: str | None) -> list[TrialOrLayout]:
    """The best, the baseline, and the newest trials in launch order, `room` rows together."""
    ranked: dict[str, TrialOrLayout] = {layout.trial: layout for layout in ranking.ordered}
    rows = [ranked.get(trial.trial, trial) for trial in trials]
    pinned = [row for row in rows if row is ranking.best or _is_baseline(row, baseline_key)][:room]
    newest = [row for row in rows if row not in pinned]
    return [*pinned, *newest[max(0, len(newest) - (room - len(pinned))) :]]


def _is_baseline(row: TrialOrLayout, baseline_key: str | None) -> bool:
    is_run = isinstance(row, RankedLayout) or row.kind is TrialKind.SEARCH
    return is_run and row.layout.key == baseline_key
