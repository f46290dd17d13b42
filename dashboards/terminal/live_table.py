"""A search in the terminal: a table that follows it, or one line an event where nobody watches; and the final table."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dashboards.terminal.headline import best_layout_line, format_throughput, headroom_lines
from dashboards.terminal.progress import describe_in_flight, describe_pace, is_simulated, shares
from dashboards.text import printable
from dashboards.trial_text import (
    describe_failure,
    describe_flag,
    describe_step_time,
    flag_lines,
    format_counts,
    format_number,
    format_trial_end,
)
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from trials.analysis.ranking import Objective, Ranking, rank, upper_bound_of
from trials.analysis.verdict import counts_of, has_stopped_early, shown_state, verdict_of
from trials.files.text import last_line
from trials.ledger.events import Event, EventKind, SearchRecord, SearchState
from trials.trial import Attempt, Outcome, Trial, TrialKind, TrialState, is_finite_number, utc_text

_WIDTH_WITHOUT_TERMINAL = 80
_LINES_AROUND_TABLE = 5
_MOST_IN_FLIGHT = 8
_BAR_WIDTH = 20
_STATE_WIDTH = 9
"""Of the longest word that stands in that column of the table."""
_DRAWN_PER_S = 2
_LONGEST_REMARK = 160
_ADVICE = re.compile(r"^\s*(rule|fix): ", re.MULTILINE)
_OF_ATTEMPTS = (
    EventKind.ATTEMPT_LAUNCHED,
    EventKind.ATTEMPT_RUNNING,
    EventKind.ATTEMPT_UNKNOWN,
    EventKind.ATTEMPT_WAITS,
    EventKind.ATTEMPT_REQUEUED,
    EventKind.ATTEMPT_ENDED,
)
_SCHEDULES = {"none": "-", "interleaved_1f1b": "int"}
# The parts of a layout key that have no column of their own: nodes, ZeRO, offload, recomputation, sequence
# parallelism, chunks, precision, attention, engine, compilation; and whatever younger fields append.
_OTHER_PARTS = (0, 6, 7, 8, 9, 10, 12, 13, 14, 15)
_FIXED_PARTS = 16


class LiveView:
    """Follows a search on `stream`: a context manager, given the search after every event by one thread.

    On a terminal one picture is drawn in place: the trials, what is in flight, and how much of each limit is used, by
    `clock` (UTC seconds since the epoch). Elsewhere (a file, a batch job's output) every event is a line.
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
            # Standard output is for results and stays untouched; remarks on standard error appear above the table.
            self._live = Live(
                console=self._console,
                transient=True,
                redirect_stdout=False,
                refresh_per_second=_DRAWN_PER_S,
                get_renderable=self._drawn,
            )
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self._live is not None:
            self._live.stop()

    def begin(self, search: SearchRecord) -> None:
        """Show a search that has come so far before anything is followed."""
        if self._live is not None:
            self._show(search)
            return
        ranking = self._ranking_of(search)
        self._print(progress_line(search, ranking))
        self._print(best_layout_line(verdict_of(search, ranking, self._baseline_key)))

    def update(self, search: SearchRecord, event: Event) -> None:
        """Show the search as it is after this event."""
        if self._live is not None:
            self._show(search)
        elif (line := event_line(event, search)) is not None:
            self._print_line(line, search)
            self._print_details(event, search)

    def _print_line(self, line: str, search: SearchRecord) -> None:
        if not self._has_lines and is_simulated(search):
            self._print("times are those of the measured table's simulated clock")
        self._print(line)
        self._has_lines = True

    def _print_details(self, event: Event, search: SearchRecord) -> None:
        """Below a measurement: where its time went, and what its flags mean unless that was said before."""
        outcome = _measured_by(event, search)
        if outcome is None:
            return
        new_flags = [flag for flag in outcome.flags if flag not in self._described_flags]
        self._described_flags.update(new_flags)
        for words in (describe_step_time(outcome.measured), *map(describe_flag, new_flags)):
            if words is not None:
                self._print(f"  {printable(words)}")

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _show(self, search: SearchRecord) -> None:
        self._shown = search, self._ranking_of(search)

    def _ranking_of(self, search: SearchRecord) -> Ranking:
        return rank(search.trials, self._objective, self._global_batch_size, MemoryHeadroom.of_search(search.spec))

    def _drawn(self) -> Group:
        """What stands on the screen now; drawn again and again, by a thread of its own, since time passes."""
        if self._shown is None:
            return Group()
        (search, ranking), now = self._shown, self._clock()
        limits = _limits(search, now)
        below = [*map(printable, (*flag_lines(search.trials), *headroom_lines(ranking))), *_flight_lines(search, now)]
        below += best_layout_line(verdict_of(search, ranking, self._baseline_key)).split("; ")
        below += filter(None, [describe_pace(search, now)])
        below.append(progress_line(search, ranking))
        room = max(2, self._console.height - _LINES_AROUND_TABLE - len(below) - limits.row_count)
        trials = _newest_and_best(search, ranking, room)
        *lines, last = (Text(line, no_wrap=True, overflow="ellipsis") for line in below)
        return Group(_table(trials, ranking, self._baseline_key), "", *lines, limits, last)


class _Console(Console):
    """One on which no text steers the terminal, whatever it holds, and whose stream may go.

    Rich ends the whole process when its stream is gone; that is for whoever watches to bear.
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
    """A console on `stream` that respects COLUMNS, 80 columns wide where there is no terminal; in a notebook, too, it
    writes lines."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    return _Console(file=stream, width=width, highlight=False, emoji=False, markup=False, force_jupyter=False)


def results_table(search: SearchRecord, ranking: Ranking, baseline_key: str | None) -> Table:
    """Every layout: what counts best first, then what was measured otherwise, then what failed, as tried.

    A layout's runs are one row; a repeat that was not measured is a row of its own.
    """
    ranked = {run.trial for runs in ranking.runs.values() for run in runs}
    others = [trial for trial in search.trials if trial.trial not in ranked]
    others.sort(key=lambda trial: trial.state is not TrialState.MEASURED)
    return _table([*ranking.ordered, *others], ranking, baseline_key)


def progress_line(search: SearchRecord, ranking: Ranking) -> str:
    """Where the search stands, in one line short enough for 80 columns; what is zero is left out."""
    words = list(format_counts(counts_of(search.trials)))
    if ranking.best is not None:
        words.append(f"best {ranking.best.trial}")
    words.append(format_node_hours(search))
    state = shown_state(search.state, search.end_reason)
    name = search.search_id if search.state is SearchState.RUNNING else f"{search.search_id} {state}"
    return f"{name}: {', '.join(words)}"


def format_node_hours(search: SearchRecord) -> str:
    """What the search has used of its budget; with what is reserved for what is in flight."""
    limit = (search.spec.get("search") or {}).get("budget_node_hours")
    of_limit = "" if limit is None else f" of {limit:g}"
    reserved = f"+{search.node_hours_reserved:.3g}" if search.in_flight else ""
    return f"{search.node_hours_used:.3f}{reserved}{of_limit} node-hours"


def event_line(event: Event, search: SearchRecord) -> str | None:
    """The event as one line with its UTC time; None where the next event says it better. `search` is after it."""
    words = _words_of(event, search)
    return None if words is None else f"{utc_text(event.at)[11:19]} {printable(words)}"


def _words_of(event: Event, search: SearchRecord) -> str | None:
    data = event.data
    if event.kind is EventKind.SEARCH_CREATED:
        return f"search {search.search_id} created"
    if event.kind is EventKind.SEARCH_STATE:
        words = " ".join(filter(None, [f"search {shown_state(search.state, search.end_reason)}", search.end_reason]))
        return words + _remark(search.detail)
    if event.kind is EventKind.BEST_CHANGED:
        return f"{data['trial']} is the best" if data["trial"] else "no trial is the best any more"
    if event.kind is EventKind.PILOT_ENDED:
        return f"pilot {data['pilot']} is over: {format_node_hours(search)}"
    if event.kind is EventKind.DRIVER_TOOK_OVER:
        return f"process {data['pid']} on {data['host']} drives the search"
    if event.kind is EventKind.TRIAL_PROPOSED:
        trial = search.trial(data["trial"])
        again = " again" if trial.kind is TrialKind.FINALIST else ""
        return f"{trial.trial} proposed{again}: {trial.layout.key}"
    if event.kind in _OF_ATTEMPTS:
        of_attempt = _describe_attempt_event(event, search)
        return None if of_attempt is None else f"{data['trial']}.{data['attempt']} {of_attempt}"
    return None


def _attempt_of(event: Event, search: SearchRecord) -> Attempt:
    trial = search.trial(event.data["trial"])
    return next(a for a in trial.attempts if a.attempt == event.data["attempt"])


def _describe_attempt_event(event: Event, search: SearchRecord) -> str | None:
    attempt = _attempt_of(event, search)
    is_step = "." in (attempt.job_id or "")  # of a pilot, which it was queued for; it runs as soon as it is one
    if event.kind is EventKind.ATTEMPT_LAUNCHED:
        return None if is_step else " as ".join(filter(None, ["queued", attempt.job_id]))
    if event.kind is EventKind.ATTEMPT_RUNNING:
        known = f" as {attempt.job_id}" if is_step else ""
        return f"running{known}" + (" on " + " ".join(attempt.nodes) if attempt.nodes else "")
    if event.kind is EventKind.ATTEMPT_UNKNOWN:
        return "cannot be seen just now" if attempt.unknown_since is not None else "is seen again"
    if event.kind is EventKind.ATTEMPT_WAITS:
        waits_for = event.data["waits_for"]
        return None if waits_for is None else f"{attempt.state}: {waits_for}"
    if event.kind is EventKind.ATTEMPT_REQUEUED:
        return "was put back into the queue"
    return _describe_attempt_end(attempt, search)


def _describe_attempt_end(attempt: Attempt, search: SearchRecord) -> str:
    if attempt.state is TrialState.MEASURED and attempt.outcome is not None:
        measured = attempt.outcome.measured
        memory, flags = measured.get("peak_memory_gib"), attempt.outcome.flags
        words = [f"{format_throughput(measured)} tokens/s", f"{measured['step_time_s']:.4g} s a step"]
        words += [] if memory is None else [f"{memory:.4g} GiB"]
        headroom = MemoryHeadroom.of_search(search.spec)
        if headroom is not None and not headroom.is_satisfied(memory):
            words[-1] += f"; {headroom.describe(memory)}"
        return "measured: " + ", ".join(words) + (f"; flagged {', '.join(flags)}" if flags else "")
    # "cancelled cancelled_by_user" would say it twice.
    is_in_reason = attempt.reason is not None and attempt.reason.startswith(attempt.state)
    ending = [attempt.reason] if is_in_reason else [attempt.state, attempt.reason]
    ended = "stopped early" if has_stopped_early(attempt) else " ".join(filter(None, ending))
    limit_gib = (search.spec.get("measure") or {}).get("memory_limit_gib")
    return ended + _remark(describe_failure(attempt, limit_gib) or attempt.excerpt)


def _measured_by(event: Event, search: SearchRecord) -> Outcome | None:
    """The outcome of the attempt that was measured with this event; None of any other."""
    if event.kind is not EventKind.ATTEMPT_ENDED:
        return None
    attempt = _attempt_of(event, search)
    return attempt.outcome if attempt.state is TrialState.MEASURED else None


def _remark(excerpt: str | None) -> str:
    """What happened, after a colon: a problem says it before its rule and fix, a traceback or a log at the end."""
    text = (excerpt or "").strip()
    is_problem = _ADVICE.search(text) and not text.startswith("Traceback")
    line = text.splitlines()[0] if is_problem else last_line(text)
    return f": {line[:_LONGEST_REMARK]}" if line else ""


def _limits(search: SearchRecord, now: float) -> Table:
    """A bar for each limit of the search."""
    grid = Table.grid(padding=(0, 1))
    for share in shares(search, now):
        bar = ProgressBar(total=share.limit, completed=min(share.used, share.limit), width=_BAR_WIDTH)
        grid.add_row(share.name, bar, share.words)
    return grid


def _flight_lines(search: SearchRecord, now: float) -> list[str]:
    """What is in flight, the longest under way first; of many only those."""
    flights = search.in_flight
    lines = [printable(describe_in_flight(a, now, is_simulated(search))) for a in flights[:_MOST_IN_FLIGHT]]
    more = len(flights) - _MOST_IN_FLIGHT
    return lines + ([f"and {more} more in flight"] if more > 0 else [])


def _newest_and_best(search: SearchRecord, ranking: Ranking, room: int) -> list[Trial]:
    """As many trials as there is room for, as tried: those in flight and the newest, but never without the best."""
    ranked = {trial.trial: trial for trial in ranking.ordered}
    kept = [ranked.get(trial.trial, trial) for trial in search.trials[-room:]]
    if ranking.best is not None and ranking.best not in kept:
        kept[0] = ranking.best
    return kept


def _table(trials: Sequence[Trial], ranking: Ranking, baseline_key: str | None) -> Table:
    """One row a trial, in 80 columns: * is the best, = is tied with it, b is the baseline, r is a repeat, ! has a flag.

    A trial in the ranking shows its layout over all runs, and how many they are.
    """
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("trial", no_wrap=True)
    for name in ("tp", "pp", "dp", "mb", "ga"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("sched", no_wrap=True)
    others = _others(trials)
    if any(others):
        table.add_column("other", overflow="fold")
    for name in ("tokens/s", "± %", "step s", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", overflow="fold", min_width=_STATE_WIDTH)
    for trial, differing in zip(trials, others, strict=True):
        is_best = trial is ranking.best
        other = [differing] if any(others) else []
        marks, numbers = _marks(trial, ranking, baseline_key), _numbers(trial, ranking)
        cells = [f"{trial.trial} {marks}", *_shape(trial), *other, *numbers]
        table.add_row(*(Text(printable(cell)) for cell in cells), style="bold" if is_best else None)
    return table


def _marks(trial: Trial, ranking: Ranking, baseline_key: str | None) -> str:
    rank_mark = "*" if trial is ranking.best else "=" if trial in ranking.ties else ""
    is_repeat = trial.kind is TrialKind.FINALIST and trial not in ranking.ordered
    is_flagged = trial.measured is not None and bool(trial.flags)
    marks = {"b": trial.layout.key == baseline_key, "r": is_repeat, "!": is_flagged}
    return rank_mark + "".join(mark for mark, holds in marks.items() if holds)


def _shape(trial: Trial) -> list[str]:
    layout = trial.layout
    sizes = (layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel)
    counts = (*sizes, layout.micro_batch_size, layout.grad_accum_steps)
    schedule = layout.canonical().pipeline_schedule
    return [*map(str, counts), _SCHEDULES.get(schedule, schedule)]


def _numbers(trial: Trial, ranking: Ranking) -> list[str]:
    measured = trial.measured
    if measured is None:
        return _numbers_without_value(trial)
    memory = measured.get("peak_memory_gib")
    return [
        format_number(measured["tokens_per_sec"]),
        _interval(measured),
        f"{measured['step_time_s']:.4g}",
        f"{memory:.3g}" if is_finite_number(memory) else "",
        _format_state(trial, ranking),
    ]


def _numbers_without_value(trial: Trial) -> list[str]:
    """A trial that was pruned or ran out of time says what it reaches at most."""
    at_most = upper_bound_of(trial, Objective.TOKENS_PER_SEC)
    return ["" if at_most is None else f"≤ {format_number(at_most)}", "", "", "", format_trial_end(trial)]


def _interval(measured: Mapping[str, Any]) -> str:
    """How far the 95 % interval reaches below and above the throughput, percent; one number where they are alike."""
    low, high = measured.get("tokens_per_sec_low"), measured.get("tokens_per_sec_high")
    if low is None or high is None:
        return ""
    below, above = (_percent(abs(end / measured["tokens_per_sec"] - 1)) for end in (low, high))
    return f"±{below}" if below == above else f"-{below}/+{above}"


def _percent(share: float) -> str:
    """Whole, or one digit of what would round to 0."""
    return f"{100 * share:.0f}" if share >= 0.0095 else f"{100 * share:.1g}"


def _format_state(trial: Trial, ranking: Ranking) -> str:
    if trial in ranking.ordered and ranking.headroom is not None and not ranking.has_headroom(trial):
        return "too full"
    runs = len(ranking.runs.get(trial.layout.key, ()))
    return f"{runs} runs" if runs > 1 and trial in ranking.ordered else str(trial.state)


def _others(trials: Sequence[Trial]) -> list[str]:
    """What differs between the layouts of these trials and has no column of its own, in words of their keys."""
    keys = [trial.layout.key.split(".") for trial in trials]
    varying = [part for part in _OTHER_PARTS if len({key[part] for key in keys}) > 1]
    shared = set.intersection(*(set(key[_FIXED_PARTS:]) for key in keys)) if keys else set()
    return [" ".join([*(key[p] for p in varying), *(w for w in key[_FIXED_PARTS:] if w not in shared)]) for key in keys]
