"""Parlay from Python: searches are planned, run, loaded, looked at, cancelled, replayed and compared (docs/api.md).

    from orchestrator import api

    search = api.run("search.yaml", search={"max_trials": 20}, launcher={"kind": "slurm"})
    search.trials, search.best, search.figures["progress"]

A thin layer over what the command line does. What the caller can put right is InputError, what Slurm, Ray or a database
refuses ExternalError; LeaseHeld of orchestrator.search.lease is a search that another driver holds. What a call needs
is imported when it is called, so that importing this file is fast.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import log, write_new
from orchestrator.common.umask import private_umask
from search_spaces.errors import ExternalError, InputError, choice_fix

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go

    from dashboards.report.data import ReportData
    from orchestrator.comparison.compare import CompareResult
    from orchestrator.config.overrides import SearchFile
    from orchestrator.config.spec import SearchSpec
    from orchestrator.lifecycle.cancel import CancelResult
    from orchestrator.lifecycle.create import RunnableSearch
    from orchestrator.recipe.recipe import Recipe
    from orchestrator.records.lookup import LocatedSearch
    from orchestrator.replay.replay import ReplayResult
    from trials.ledger.events import EndReason, SearchState

__all__ = [
    "ExternalError",
    "InputError",
    "Search",
    "cancel",
    "compare",
    "forecast",
    "load",
    "plan",
    "replay",
    "resume",
    "run",
    "searches",
]


@dataclass(frozen=True, repr=False)
class Search:
    """A search as it was when it was loaded, or when its run ended; `refresh` reads it again.

    Tables and figures of one Search are of one moment. Reading changes nothing in the search, whoever drives it.
    """

    _found: LocatedSearch

    @property
    def search_id(self) -> str:
        return self._found.record.search_id

    @property
    def folder(self) -> Path:
        """Where it lies: search.yaml, journal.jsonl, trials/, recipe/ and so on (docs/contract.md)."""
        return self._found.folder.path

    @property
    def state(self) -> SearchState:
        return self._found.record.state

    @property
    def end_reason(self) -> EndReason | None:
        """Why it ended; None while it has not."""
        return self._found.record.end_reason

    @property
    def spec(self) -> SearchSpec:
        """The search as its file described it, with everything resolved."""
        return self._found.spec

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `parlay status --json` prints: counts of trials and reasons, node-hours, where recipe and MLflow are."""
        from orchestrator.records.summary import search_summary

        return search_summary(self._found.record, self.spec, self._found.folder)

    @property
    def best(self) -> dict[str, Any] | None:
        """The contract's `best` object: trial, layout, tokens/s with its 95 % interval, ties; None while nothing is."""
        return self.summary["best"]

    @cached_property
    def trials(self) -> pandas.DataFrame:
        """A row for each trial, as proposed; columns named as in docs/contract.md with their units, unknown is NA."""
        from orchestrator.dataframes import trials_frame

        return trials_frame(self._found.record)

    @cached_property
    def events(self) -> pandas.DataFrame:
        """A row for each event of the journal: seq, fencing, at (UTC), kind, trial, attempt, data. OSError where the
        folder cannot be seen from here."""
        from orchestrator.dataframes import events_frame
        from trials.ledger.journal import Journal

        with closing(Journal(self._found.folder.journal)) as journal:
            return events_frame(journal.read())

    @property
    def recipe(self) -> Recipe | None:
        """What launches the best layout, with its evidence; None until one is written. InputError for an edited one."""
        from orchestrator.recipe.read import read_recipe

        folder = self._found.folder.recipe
        return read_recipe(folder).recipe if folder.exists() else None

    @cached_property
    def figures(self) -> dict[str, go.Figure]:
        """The report's figures (docs/report.md) as far as there is something to draw: progress, failures, importance,
        nodes, memory, heat, parallel, time, timeline, cost, predictions."""
        from dashboards.report.figures.plotly_export import graph_figures

        return graph_figures(self._report_data)

    def report(self, output: Path | str | None = None) -> Path:
        """The path of the report, one HTML file: `output`, a new one, or report.html in the folder, written anew."""
        from dashboards.report.write import report_text, write_report

        if output is None:
            write_report(self._found.record, self._found.folder, time.time())
            return self._found.folder.report
        write_new(Path(output), report_text(self._found.record, time.time()), "output")
        return Path(output)

    def refresh(self) -> Search:
        """The same search as it is now."""
        return load(self.folder, ledger=self._found.ledger_url)

    def __repr__(self) -> str:
        return f"<Search {self.search_id}, {self.state}: {self._headline}>"

    def _repr_html_(self) -> str:
        from dashboards.report.notebook_card import notebook_card

        return notebook_card(self._report_data)

    @cached_property
    def _report_data(self) -> ReportData:
        from dashboards.report.data import report_data

        return report_data(self._found.record, time.time())

    @property
    def _headline(self) -> str:
        from orchestrator.records.summary import result_line

        return result_line(self._found.record, self.spec)


def plan(search_file: SearchFile, /, *, top: int | None = None, **changes: Any) -> pandas.DataFrame:
    """What to expect of the layouts that a search may try, in predicted order: a row each, or the first `top`.

    Columns as `layouts` of `parlay plan --json`; `attrs` holds `rejected`, `expected_node_hours` and `notes`. Nothing
    is launched or written. `changes` as in `run`.
    """
    from orchestrator.config.overrides import load_search, without_set_location
    from orchestrator.dataframes import plan_frame
    from orchestrator.planning.candidates import candidates_of
    from orchestrator.planning.plan import plan_of
    from orchestrator.planning.prior_trials import collect_prior_trials_for_plan
    from orchestrator.preflight.trainer import require_trainer

    if top is not None and not _is_count(top):
        fix = "leave it out for all of them"
        raise InputError.of("top", f"is {top!r}", key="top", value=top, rule="a whole number, from 1 on", fix=fix)
    with without_set_location():
        spec = load_search(search_file, changes)
        space = candidates_of(spec)
        require_trainer(spec)
    return plan_frame(plan_of(spec, space, collect_prior_trials_for_plan(spec)), space, top)


def run(search_file: SearchFile, /, *, quiet: bool = False, **changes: Any) -> Search:
    """Search, here and now, until the best layout is known or a limit is reached; the search as it has ended.

    `changes` are keys of the search file: of a mapping each key is set by itself (`search={"max_trials": 5}`, also
    `launcher={"slurm.partition": "gpu"}`), any other value as it is (`work_dir="runs"`). Relative paths in YAML text,
    mappings and changes start in the working directory. Every event is a line on standard error, unless `quiet`.

    Ctrl-C, or a notebook's interrupt, begins no more trials and waits for those that run; a second one leaves them as
    they are. KeyboardInterrupt is raised once the driver has left in order, and `resume` goes on. A thread other than
    the main one hears no signals. The call blocks and needs no event loop of its own: a notebook's may be running.
    """
    from orchestrator.config.overrides import load_search, without_set_location
    from orchestrator.lifecycle.create import create_runnable_search, validate_search

    note = _silent if quiet else log
    with private_umask(), without_set_location():
        started = create_runnable_search(validate_search(load_search(search_file, changes), note), note)
    note(f"search {started.folder.search_id} in {started.folder.path}")
    return _driven(started, quiet)


def resume(search: Search | Path | str | None = None, /, *, ledger: str | None = None, quiet: bool = False) -> Search:
    """Go on with a search whose driver has gone: the same trials, none twice. `search` as in `load`, the rest as in
    `run`. LeaseHeld while another driver holds it."""
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_search

    with private_umask():
        started = reopen_search(find_search(_named(search), ledger), _silent if quiet else log)
    return _driven(started, quiet)


def load(search: Search | Path | str | None = None, /, *, ledger: str | None = None) -> Search:
    """A search by its id (which may be shortened while unique) or its folder; the newest where nothing is named.

    `ledger` is a database's URL in place of Parlay's own. InputError where there is no such search.
    """
    from orchestrator.records.lookup import find_search

    return Search(find_search(_named(search), ledger))


def cancel(
    search: Search | Path | str | None = None, /, *, ledger: str | None = None, quiet: bool = False
) -> CancelResult:
    """End a search and everything it has in flight, whoever drives it: another thread, process or job, or nobody.

    `cancelled` names the trials that this ended, `unreached` what may live on, `is_complete` says whether the search
    has ended with all of it; `to_json()` is what `parlay cancel --json` prints. Its driver has two minutes to end it,
    and where it has none what is in flight is tried for as long. `search` as in `load`. LeaseHeld where another driver
    takes it over meanwhile.
    """
    from orchestrator.lifecycle.cancel import cancel_search
    from orchestrator.records.lookup import find_search

    with private_umask():
        return cancel_search(find_search(_named(search), ledger), _silent if quiet else log)


def searches(*, ledger: str | None = None) -> pandas.DataFrame:
    """The searches of the ledger, the newest first: search_id, state, end_reason, num_trials, best_trial, folder.

    InputError where `ledger` names a file that is not there.
    """
    from orchestrator.dataframes import searches_frame
    from trials.ledger.location import ledger_to_read
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_to_read(ledger))) as reader:
        return searches_frame(reader.searches())


def compare(
    a: Search | Path | str,
    b: Search | Path | str,
    /,
    *,
    margin: float = 0.05,
    force: bool = False,
    ledger: str | None = None,
) -> CompareResult:
    """What differs between two searches or recipes, and how much faster B's best layout is than A's.

    `verdict`, `found.ratio` with `found.low` and `found.high` (95 %), `question`, `layout`, `software`, `pairs`;
    `to_json()` is what `parlay compare --json` prints. `force` reads an edited recipe all the same.
    """
    from orchestrator.comparison.compare import compare_sides
    from orchestrator.comparison.lookup import find_side
    from orchestrator.replay.replay import ReplayRules

    one, other = (find_side(str(_named(given)), ledger, force, log) for given in (a, b))
    return compare_sides(one, other, ReplayRules(margin=margin).margin)


def replay(
    recipe: Search | Path | str | None = None,
    /,
    *,
    launcher: str | None = None,
    trainer: Mapping[str, Any] | None = None,
    repeats: int = 5,
    sessions: int = 5,
    session_interval: str = "5m",
    margin: float = 0.05,
    force: bool = False,
    work_dir: Path | str = "runs",
    ledger: str | None = None,
    quiet: bool = False,
) -> ReplayResult:
    """Measure a recipe's layout again and say whether it was reproduced: `verdict`, and in `comparison` the ratio of
    speeds with its 95 % interval (docs/recipe.md).

    `recipe` is a recipe's folder, or a search as in `load`. `launcher` is local, ray or slurm; without it the one that
    measured. `trainer` is another one than that: `{"kind": "megatron-lm", "script": "pretrain_gpt.py"}`. The layout is
    measured `repeats` times, and again in up to `sessions`, `session_interval` apart, until there is a verdict.
    Ctrl-C ends the run in flight and raises KeyboardInterrupt; what was measured before stays in the replay's folder.
    """
    from orchestrator.config.overrides import without_set_location
    from orchestrator.lifecycle.signals import CancelOnSignal
    from orchestrator.recipe.read import read_recipe
    from orchestrator.records.lookup import find_recipe
    from orchestrator.replay.replay import ReplayRules
    from orchestrator.replay.run import LAUNCHERS, note_in_recipe, run_replay, with_trainer

    note, stop = _silent if quiet else log, CancelOnSignal()
    rules = ReplayRules(repeats, margin, sessions, _seconds("session_interval", session_interval))
    if launcher is not None:
        _require_one_of("launcher", launcher, LAUNCHERS)
    with private_umask(), without_set_location():
        loaded = read_recipe(find_recipe(_named(recipe), ledger), force)
        if loaded.banner:
            note(loaded.banner)
        told, python = with_trainer(loaded, *_other_trainer(trainer), launcher)
        try:
            result = run_replay(told, python, launcher, rules, Path(work_dir), note, stop)
        finally:
            if stop.is_terminated:
                signal.raise_signal(signal.SIGTERM)  # what it was to end has only been put in order
        note_in_recipe(loaded, told, python, result, note)
    return result


def forecast(
    search: Search | Path | str | None = None,
    /,
    *,
    nodes: Sequence[int] | None = None,
    scaling: str | None = None,
    ledger: str | None = None,
) -> pandas.DataFrame:
    """What to expect on more nodes than a search has tried: a row for each scaling (weak and strong, or the one given)
    and each number of nodes (2, 4 and 8 times those tried, or those given). Columns as `forecasts` of
    `parlay forecast --json`; `attrs` holds `notes`."""
    from orchestrator.dataframes import forecast_frame
    from orchestrator.planning.forecast import Scaling
    from orchestrator.planning.forecast import forecast as forecast_of
    from orchestrator.planning.forecast_inputs import input_from_search
    from orchestrator.planning.prior_trials import load_prior_trials
    from orchestrator.records.lookup import find_search

    if scaling is not None:
        _require_one_of("scaling", scaling, [*Scaling])
    if nodes is not None:
        _require_counts("nodes", nodes)
    found = find_search(_named(search), ledger)
    inputs = input_from_search(found.record, found.spec, load_prior_trials(found.folder))
    return forecast_frame(forecast_of(inputs, [*Scaling] if scaling is None else [Scaling(scaling)], nodes))


def _driven(started: RunnableSearch, quiet: bool) -> Search:
    """Drive the search in this process until it has ended; raises what `run` says."""
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import SearchCallbacks, drive
    from orchestrator.lifecycle.signals import DriverSignals

    spec, signals = started.spec, DriverSignals()
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, sys.stderr)
    watcher = (
        SearchCallbacks(driver_context=signals.handling)
        if quiet
        else SearchCallbacks(log, view.update, signals.handling)
    )
    with private_umask(), nullcontext() if quiet else view:
        record = drive(started.folder, spec, started.candidates, started.tracking, started.ledger_url, watcher)
    if signals.is_terminated:
        signal.raise_signal(signal.SIGTERM)  # what it was to end has only been put in order
    if not record.state.is_ended:
        raise KeyboardInterrupt(f"stopped; nothing is lost: api.resume({started.folder.search_id!r})")
    return load(started.folder.path, ledger=started.ledger_url)


def _other_trainer(trainer: Mapping[str, Any] | None) -> tuple[str | None, list[str]]:
    """Its kind, and the rest as `--set` says it; InputError without a kind."""
    if trainer is None:
        return None, []
    from orchestrator.config.overrides import to_overrides

    if "kind" not in trainer:
        rule, fix = "another trainer has a kind", "one of docs/trainers.md: {'kind': 'megatron-lm', ...}"
        raise InputError.of("missing_key", "names no kind", key="trainer.kind", rule=rule, fix=fix)
    rest = {key: value for key, value in trainer.items() if key != "kind"}
    return trainer["kind"], [*to_overrides({"trainer": rest})]


def _seconds(key: str, duration: str) -> float:
    from search_spaces.schema.durations import parse_duration_s

    try:
        return parse_duration_s(duration)
    except InputError as error:
        raise error.at(key=key) from error


def _named(search: Search | Path | str | None) -> str | None:
    if isinstance(search, Search):
        return str(search.folder)
    return None if search is None else os.fspath(search)


def _require_one_of(key: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        rule, fix = f"one of {', '.join(known)}", choice_fix(value, known)
        raise InputError.of("choice", f"is {value!r}", key=key, value=value, rule=rule, fix=fix)


def _require_counts(key: str, values: Any) -> None:
    if not isinstance(values, list | tuple | range) or not values or not all(_is_count(count) for count in values):
        rule = "whole numbers, from 1 on"
        raise InputError.of(key, f"is {values!r}", key=key, value=values, rule=rule, fix=f"for example {key}=[2, 4]")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _silent(text: str) -> None:
    pass
