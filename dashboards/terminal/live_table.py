"""Terminal views of a search: live table, one line per event without a terminal, and final results table."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dashboards.fabric_check_text import describe_fabric_check
from dashboards.terminal.event_lines import event_line, measured_by
from dashboards.terminal.headline import best_layout_line, headroom_lines
from dashboards.terminal.layout_table import LayoutTable, first_rows, newest_rows
from dashboards.terminal.progress import (
    NODE_HOURS,
    describe_in_flight,
    describe_time,
    format_node_hours,
    limit_usages,
)
from dashboards.text import printable
from dashboards.trial_text import (
    describe_flag,
    describe_replayed_table,
    describe_step_time,
    flag_lines,
    format_counts,
)
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from trials.analysis.ranked_layout import TrialOrLayout
from trials.analysis.ranking import Objective, Ranking, rank
from trials.analysis.verdict import counts_of, display_state, verdict_of
from trials.ledger.events import Event, SearchRecord, SearchState
from trials.trial import TrialState

_WIDTH_WITHOUT_TERMINAL = 80
_LINES_AROUND_TABLE = 5
_MAX_IN_FLIGHT = 8
_LINES_PER_IN_FLIGHT = 6
_BAR_WIDTH = 20
_DRAWN_PER_S = 2


class LiveView:
    """View of a running search on `stream`, updated by one thread after every event. A context manager.

    On a terminal one table is redrawn in place: trials, attempts in flight, and the usage of each limit by `clock` (UTC
    seconds since the epoch). Elsewhere (a file, a batch job's output) every event is a line.
    """

    def __init__(
        self,
        objective: Objective,
        global_batch_size: int,
        baseline_key: str | None,
        stream: TextIO,
        clock: Callable[[], float] = time.time,
    ):
        self._objective = objective
        self._global_batch_size = global_batch_size
        self._baseline_key = baseline_key
        self._console = console_for(stream)
        self._clock = clock
        self._live: Live | None = None
        self._shown: tuple[SearchRecord, Ranking] | None = None
        self._has_lines = False
        self._described_flags: set[str] = set()

    def __enter__(self) -> LiveView:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Standard output is for results and stays untouched; messages on standard error appear above the table.
            self._live = Live(
                console=self._console,
                transient=True,
                redirect_stdout=False,
                refresh_per_second=_DRAWN_PER_S,
                get_renderable=self._render,
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._live is not None:
            self._live.stop()

    def begin(self, search: SearchRecord) -> None:
        """Show the search as it is before its next event."""
        if self._live is not None:
            self._show(search)
            return
        ranking = self._ranking_of(search)
        self._print(progress_line(search))
        self._print(best_layout_line(verdict_of(search, ranking, self._baseline_key)))

    def update(self, search: SearchRecord, event: Event) -> None:
        """Show the search after this event."""
        if self._live is not None:
            self._show(search)
        elif (line := event_line(event, search)) is not None:
            self._print_line(line, search)
            self._print_details(event, search)

    def _print_line(self, line: str, search: SearchRecord) -> None:
        if not self._has_lines and search.replayed_table is not None:
            self._print(describe_replayed_table(search.replayed_table))
        self._print(line)
        self._has_lines = True

    def _print_details(self, event: Event, search: SearchRecord) -> None:
        """Print a measurement's step-time breakdown and the meaning of flags that were not described before."""
        outcome = measured_by(event, search)
        if outcome is None:
            return
        new_flags = [flag for flag in outcome.flags if flag not in self._described_flags]
        self._described_flags.update(new_flags)
        time_s = None if outcome.metrics is None else outcome.metrics.time_s
        for text in (describe_step_time(time_s), *map(describe_flag, new_flags)):
            if text is not None:
                self._print(f"  {printable(text)}")

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=not self._console.is_terminal)

    def _show(self, search: SearchRecord) -> None:
        self._shown = search, self._ranking_of(search)

    def _ranking_of(self, search: SearchRecord) -> Ranking:
        return rank(search.trials, self._objective, self._global_batch_size, MemoryHeadroom.of_search(search.spec))

    def _render(self) -> Group:
        """Current screen. Called periodically by rich's thread, since elapsed times change."""
        if self._shown is None:
            return Group()
        (search, ranking), now = self._shown, self._clock()
        limits = limit_bars(search, now)
        below = [
            *map(printable, (*describe_fabric_check(search), *flag_lines(search.trials), *headroom_lines(ranking))),
            *in_flight_lines(search, now, self._console.height // _LINES_PER_IN_FLIGHT),
        ]
        below += [] if search.replayed_table is None else [describe_replayed_table(search.replayed_table)]
        below += best_layout_line(verdict_of(search, ranking, self._baseline_key)).split("; ")
        below += filter(None, [describe_time(search, now)])
        lines = self._wrapped(below)
        has_budget = any(usage.name == NODE_HOURS for usage in limit_usages(search, now))
        last = self._wrapped([progress_line(search, has_node_hours=not has_budget)])
        room = max(2, self._console.height - _LINES_AROUND_TABLE - len(lines) - len(last) - limits.row_count)
        rows = newest_rows(search.trials, room, ranking, self._baseline_key)
        table = LayoutTable(rows, ranking, self._baseline_key, search.trials)
        return Group(table, "", *lines, limits, *last)

    def _wrapped(self, lines: Iterable[str]) -> list[Text]:
        """Lines of the terminal's width, broken between words."""
        return [part for line in lines for part in Text(line).wrap(self._console, self._console.width)]


class _Console(Console):
    """Console that escapes control characters in text and raises on a broken pipe.

    Rich itself would exit the whole process on a broken pipe.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # Rich's own: a move, a line taken back
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)

    def on_broken_pipe(self) -> None:
        raise


def console_for(stream: TextIO) -> Console:
    """Console on `stream`: respects COLUMNS, is 80 columns wide without a terminal, and writes lines in notebooks."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    return _Console(file=stream, width=width, highlight=False, emoji=False, markup=False, force_jupyter=False)


def results_table(
    search: SearchRecord, ranking: Ranking, baseline_key: str | None, most: int | None = None
) -> LayoutTable:
    """Table of the layouts: ranked ones best first, then other measurements, then failures in launch order.

    The runs of a layout share a row; a repeat that was not measured has its own. Of more than `most` rows (None: any
    number) the first are shown, and the baseline.
    """
    ranked = {run.trial for layout in ranking.ordered for run in layout.runs}
    others = [trial for trial in search.trials if trial.trial not in ranked]
    others.sort(key=lambda trial: trial.state is not TrialState.MEASURED)
    rows: list[TrialOrLayout] = [*ranking.ordered, *others]
    shown = first_rows(rows, most, ranking, baseline_key)
    return LayoutTable(shown, ranking, baseline_key, rows, num_more=len(rows) - len(shown))


def progress_line(search: SearchRecord, has_node_hours: bool = True) -> str:
    """Trials of the search by state, and its node-hours, in one line; zero counts are omitted."""
    parts = [*format_counts(counts_of(search.trials)), *([format_node_hours(search)] if has_node_hours else [])]
    state = display_state(search.state, search.end_reason)
    name = search.search_id if search.state is SearchState.RUNNING else f"{search.search_id} {state}"
    return f"{name}: {', '.join(parts)}" if parts else name


def limit_bars(search: SearchRecord, now: float) -> Table:
    """Progress bar for each limit of the search."""
    grid = Table.grid(padding=(0, 1))
    for usage in limit_usages(search, now):
        bar = ProgressBar(total=usage.limit, completed=min(usage.used, usage.limit), width=_BAR_WIDTH)
        grid.add_row(usage.name, bar, usage.text)
    return grid


def in_flight_lines(search: SearchRecord, now: float, most: int = _MAX_IN_FLIGHT) -> list[str]:
    """The first `most` attempts in flight, the oldest first, and how many are omitted."""
    flights = search.in_flight
    lines = [printable(describe_in_flight(a, now, search.replayed_table is not None)) for a in flights[:most]]
    more = len(flights) - most
    return lines + ([f"and {more} more in flight"] if more > 0 else [])
