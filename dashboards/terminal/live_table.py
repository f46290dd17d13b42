"""Terminal views of a search: live table, and one line per event without a terminal."""

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
from dashboards.search_view import SearchView
from dashboards.terminal.event_lines import event_line, measured_by
from dashboards.terminal.headline import best_layout_line, headroom_lines
from dashboards.terminal.layout_table import MarkedTable, newest_rows
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
from trials.analysis.verdict import counts_of, display_state
from trials.ledger.events import Event, SearchRecord, SearchState

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

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time):
        self._console = console_for(stream)
        self._clock = clock
        self._live: Live | None = None
        self._shown: SearchView | None = None
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
        self._print(progress_line(search))
        self._print(best_layout_line(SearchView.of(search, self._clock()).verdict))

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
        self._shown = SearchView.of(search, self._clock())

    def _render(self) -> Group:
        """Current screen. Called periodically by rich's thread, since elapsed times change."""
        if self._shown is None:
            return Group()
        view, now = self._shown, self._clock()
        search, verdict = view.search, view.verdict
        limits = limit_bars(search, now)
        below = [
            *map(
                printable, (*describe_fabric_check(search), *flag_lines(search.trials), *headroom_lines(view.ranking))
            ),
            *in_flight_lines(search, now, self._console.height // _LINES_PER_IN_FLIGHT),
        ]
        below += [] if search.replayed_table is None else [describe_replayed_table(search.replayed_table)]
        below += best_layout_line(verdict).split("; ")
        below += filter(None, [describe_time(search, now)])
        lines = self._wrapped(below)
        has_budget = any(usage.name == NODE_HOURS for usage in limit_usages(search, now))
        last = self._wrapped([progress_line(search, has_node_hours=not has_budget)])
        room = max(2, self._console.height - _LINES_AROUND_TABLE - len(lines) - len(last) - limits.row_count)
        table = MarkedTable(newest_rows(view, room), view)
        return Group(table, Text(table.legend, style="dim"), *lines, limits, *last)

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
        used = min(usage.used, usage.limit)
        bar = ProgressBar(usage.limit, used, _BAR_WIDTH, complete_style="cyan", finished_style="cyan")
        grid.add_row(usage.name, bar, usage.text)
    return grid


def in_flight_lines(search: SearchRecord, now: float, most: int = _MAX_IN_FLIGHT) -> list[str]:
    """The first `most` attempts in flight, the oldest first, and how many are omitted."""
    flights = search.in_flight
    lines = [printable(describe_in_flight(a, now, search.replayed_table is not None)) for a in flights[:most]]
    more = len(flights) - most
    return lines + ([f"and {more} more in flight"] if more > 0 else [])
