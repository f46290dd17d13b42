"""Text summary of a search, for `run`, `resume`, `status`, `watch` and `best`."""

from __future__ import annotations

import sys
import time

from rich.text import Text

from dashboards.cost_text import describe_search_cost
from dashboards.fabric_check_text import describe_fabric_check
from dashboards.report.explanation import explanation_lines
from dashboards.report.sentences import describe_comparison
from dashboards.report.use_it import use_it
from dashboards.search_view import SearchView
from dashboards.terminal.headline import best_layout_line, describe_ending, headroom_lines
from dashboards.terminal.layout_table import results_table
from dashboards.terminal.live_table import console_for, in_flight_lines, limit_bars
from dashboards.terminal.progress import (
    describe_node_time,
    describe_time,
    format_node_hours,
)
from dashboards.text import command_line
from dashboards.trial_text import describe_replayed_table, flag_lines, time_lines
from orchestrator.cli.output import print_text
from orchestrator.config.spec import SearchSpec
from trials.analysis.final_rounds import describe_finals_end, finals_end_of
from trials.analysis.node_time import search_node_time
from trials.analysis.pareto import trade_offs
from trials.analysis.search_cost import SearchCost
from trials.analysis.verdict import DisplayState, SearchVerdict, VerdictKind, has_failed
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord

MAX_ROWS = 20
"""Layouts in the table, unless all are asked for."""


def print_search_summary(
    search: SearchRecord, spec: SearchSpec, folder: SearchFolder, shows_all: bool = False, is_driven: bool = False
) -> None:
    """Print the first layouts or all, their time and flags, the result, and next steps; `is_driven`: a driver is at
    work."""
    view = SearchView.of(search, time.time())
    ranking, verdict = view.ranking, view.verdict
    if search.trials:
        table = results_table(view, None if shows_all else MAX_ROWS)
        console_for(sys.stdout).print(table, *([Text(table.legend, style="dim")] if table.legend else []))
        if table.num_more:
            print_text(f"{table.num_more} more: parlay status {folder.cli_name} --all")
    if not search.state.is_ended:
        console_for(sys.stdout).print(limit_bars(search, time.time()))
    notes = (
        *describe_fabric_check(search),
        *time_lines(ranking.ordered),
        *flag_lines(search.trials),
        *headroom_lines(ranking),
    )
    best, replayed, finals = best_layout_line(verdict), search.replayed_table, finals_end_of(search)
    is_redundant = best == search.detail or verdict.kind in (VerdictKind.REFUSED, VerdictKind.CANCELLED)
    lines = [
        *notes,
        _format_state(search, verdict),
        *_time_lines(search),
        None if finals is None else describe_finals_end(finals),
        describe_node_time(search_node_time(search)) if replayed is None else describe_replayed_table(replayed),
        describe_search_cost(SearchCost.of(search, verdict)),
        None if is_redundant else best,
        describe_comparison(view),
        *trade_offs(ranking),
        *explanation_lines(view),
        *_next_steps(search, folder, is_driven),
    ]
    print_text("\n".join(line for line in lines if line is not None))
    if spec.search.against is not None:
        from orchestrator.cli.compare import print_stacks
        from orchestrator.replay.stacks import stack_comparison

        if (stacks := stack_comparison(search, spec)) is not None:
            print_stacks(stacks, spec)


def _format_state(search: SearchRecord, verdict: SearchVerdict) -> str:
    why = f" ({ending})" if (ending := describe_ending(verdict)) else ""
    words = f"search {search.search_id} is {verdict.state}{why}; {format_node_hours(search)}"
    is_redundant = verdict.state is DisplayState.REFUSED
    return words + (f"\n{search.detail}" if search.detail and not is_redundant else "")


def _time_lines(search: SearchRecord) -> list[str | None]:
    """Attempts in flight of an unended search with what Slurm says of them, its time so far, and at most remaining."""
    now = time.time()
    return [] if search.state.is_ended else [*in_flight_lines(search, now), describe_time(search, now)]


def _next_steps(search: SearchRecord, folder: SearchFolder, is_driven: bool) -> list[str]:
    """Commands for further steps, if there is something to see."""
    words = []
    if folder.recipe.exists():
        words.append(f"recipe:  {folder.recipe} (see its README.md)")
        words.append(f"replay:  parlay replay {folder.cli_name}")
    if folder.mlflow.exists():
        words.append("MLflow:  parlay dashboard")
    failed = [t.trial for t in search.trials if has_failed(t)]
    if failed:
        words.append(f"failed:  parlay logs {folder.cli_name} {failed[0]}")
    if not search.state.is_ended and not is_driven:
        words.append(f"resume:  parlay resume {folder.cli_name} (if no driver runs)")
    return [*words, *launch_lines(folder)]


def launch_lines(folder: SearchFolder) -> list[str]:
    """Commands that start the measured program and a training with the recipe, each alone on its line; none where there
    is none."""
    if (use := use_it(folder)) is None:
        return []
    lines = [] if use.start is None else ["launch the measured program:", command_line(use.start)]
    for first in use.launches[:1]:
        without = "" if first.was_measured else "; not measured with it"
        lines += [f"train with {first.trainer}, beside recipe/ (not run{without}):", command_line(first.command)]
    return lines
