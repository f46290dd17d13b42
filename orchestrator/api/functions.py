"""Functions of the public Python API, one for each verb that a program needs.

Modules are imported by the functions that need them, so that importing this one is fast.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.api.search import Search
from orchestrator.lifecycle.logs import TerminalSink, sending_to
from search_spaces.errors import InputError, choice_fix

if TYPE_CHECKING:
    import pandas

    from orchestrator.config.loader import GivenSearch
    from orchestrator.lifecycle.cancel import CancelAnswer
    from orchestrator.lifecycle.drive import RunnableSearch
    from orchestrator.replay.compare import CompareResult
    from orchestrator.replay.replay import ReplayAnswer
    from search_spaces.schema.yaml_document import Override

_log = logging.getLogger(__name__)


def plan(search_file: GivenSearch, /, *, top: int | None = None, **changes: Any) -> pandas.DataFrame:
    """Predict the layouts that a search may try: one row per layout in predicted order, or the first `top`.

    Columns as `layouts` of `parlay plan --json`; `attrs` holds `rejected`, `expected_node_hours` and `notes`. Nothing
    is launched or written. `changes` as in `run`.
    """
    from orchestrator.api.dataframes import plan_frame
    from orchestrator.config.loader import load_search
    from orchestrator.diagnostics.preflight.trainer import require_trainer
    from orchestrator.planning.candidates import candidates_of
    from orchestrator.planning.plan import plan_of
    from orchestrator.planning.prior_trials import collect_prior_trials_for_plan

    if top is not None and not _is_count(top):
        fix = "leave it out for all of them"
        raise InputError.of("top", f"is {top!r}", key="top", value=top, rule="a whole number, from 1 on", fix=fix)
    spec = load_search(search_file, changes)
    space = candidates_of(spec)
    require_trainer(spec)
    return plan_frame(plan_of(spec, space, collect_prior_trials_for_plan(spec)), space, top)


def run(search_file: GivenSearch, /, *, quiet: bool = False, **changes: Any) -> Search:
    """Run a search in this process until the best layout is known or a limit is reached, and return it.

    `changes` are keys of the search file: each key of a mapping is set by itself (`search={"max_trials": 5}`, also
    `launcher={"slurm.partition": "gpu"}`), any other value replaces the file's (`work_dir="runs"`). Relative paths in
    YAML text, mappings and changes start in the working directory. Events are logged on standard error unless `quiet`.

    Ctrl-C, or a notebook's interrupt, starts no more trials and waits for the running ones; a second one leaves them
    running. KeyboardInterrupt is raised after the driver has shut down, and `resume` continues the search. Signals
    reach the main thread only. The call blocks, and does not need or disturb an event loop.
    """
    from orchestrator.config.loader import load_search
    from orchestrator.lifecycle.create import create_search, validate_search

    with sending_to(_sink(quiet)), _private_umask(), ExitStack() as held:
        runnable = held.enter_context(create_search(validate_search(load_search(search_file, changes))))
        _log.info(f"search {runnable.folder.search_id} in {runnable.folder.path}")
        return _drive_here(runnable, quiet)


def resume(search: Search | Path | str | None = None, /, *, ledger: str | None = None, quiet: bool = False) -> Search:
    """Continue a search whose driver has ended: the same trials, none twice.

    `search` as in `load`, the rest as in `run`. LeaseHeld while another driver holds it.
    """
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.records.lookup import find_own_search

    with sending_to(_sink(quiet)):
        with _private_umask():
            runnable = reopen_search(find_own_search(_name_of(search), ledger))
        return _drive_here(runnable, quiet)


def load(search: Search | Path | str | None = None, /, *, ledger: str | None = None) -> Search:
    """Load a search by its id, a unique prefix of it, or its folder; the newest without an argument.

    `ledger` is the URL of another database than Parlay's default. InputError if there is no such search.
    """
    from orchestrator.records.lookup import find_search

    return Search(find_search(_name_of(search), ledger))


def cancel(
    search: Search | Path | str | None = None, /, *, ledger: str | None = None, quiet: bool = False
) -> CancelAnswer:
    """Cancel a search and its running attempts, with or without a driver in this or another process or job.

    The result has the `cancelled` trials, the jobs that may still run (`unreached`), and `is_complete`: it is
    what `parlay cancel --json` prints. It waits up to two minutes for the driver, or for the attempts of a search
    without one. `search` as in `load`. LeaseHeld if another driver takes it over meanwhile.
    """
    from orchestrator.lifecycle.cancel import cancel_search
    from orchestrator.records.lookup import find_own_search

    with sending_to(_sink(quiet)), _private_umask():
        return cancel_search(find_own_search(_name_of(search), ledger))


def searches(*, ledger: str | None = None) -> pandas.DataFrame:
    """List the searches of the ledger, newest first: search_id, state, end_reason, num_trials, best_trial, folder.

    InputError if `ledger` names a file that does not exist.
    """
    from orchestrator.api.dataframes import searches_frame
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
    """Compare two searches or recipes: their differences, and the speedup of B's best layout over A's.

    The result has `verdict`, and `found.ratio` with `found.low` and `found.high` (95 %); `answer` is what
    `parlay compare --json` prints. `force` accepts an edited recipe.
    """
    from orchestrator.replay.compare import compare_sides, find_side
    from orchestrator.replay.replay import ReplayRules

    with sending_to(TerminalSink()):
        one, other = (find_side(str(_name_of(given)), ledger, force) for given in (a, b))
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
    trust: bool = False,
    work_dir: Path | str = "runs",
    ledger: str | None = None,
    quiet: bool = False,
) -> ReplayAnswer:
    """Measure a recipe's layout again; the answer is what `parlay replay --json` prints: `verdict`, `ratio`
    with its interval, `sessions` and so on.

    `recipe` is a recipe's folder, or a search as in `load`. `launcher` is local, ray or slurm, by default the one of
    the search. `trainer` is another trainer than the search's: `{"kind": "megatron-lm", "script": "pretrain_gpt.py"}`.
    The layout is measured `repeats` times per session, in up to `sessions` that are `session_interval` apart, until
    there is a verdict (docs/recipe.md). `force` accepts an edited recipe, `trust` another user's. Ctrl-C cancels the
    current run and raises KeyboardInterrupt; earlier runs stay in the replay's folder.
    """
    from orchestrator.lifecycle.signals import StopSignals
    from orchestrator.recipe.read import read_recipe
    from orchestrator.records.lookup import find_recipe
    from orchestrator.replay.note_in_recipe import note_replay
    from orchestrator.replay.replay import ReplayRules
    from orchestrator.replay.run import LAUNCHERS, run_replay, with_trainer
    from search_spaces.schema.durations import parse_duration_s

    stop = StopSignals()
    interval_s = parse_duration_s(session_interval, key="session_interval")
    rules = ReplayRules(repeats, margin, sessions, interval_s)
    if launcher is not None:
        _require_one_of("launcher", launcher, LAUNCHERS)
    with sending_to(_sink(quiet)), _private_umask():
        loaded = read_recipe(find_recipe(_name_of(recipe), ledger), force)
        if loaded.banner:
            _log.warning(loaded.banner)
        rendered, python = with_trainer(loaded, *_other_trainer(trainer), launcher, trust)
        try:
            answer = run_replay(rendered, python, launcher, rules, Path(work_dir), stop)
        finally:
            if signal.SIGTERM in stop.received:
                signal.raise_signal(signal.SIGTERM)  # the driver only shut down; the process has to end
        note_replay(loaded, rendered, python, answer)
    return answer


def forecast(
    search: Search | Path | str | None = None,
    /,
    *,
    nodes: Sequence[int] | None = None,
    scaling: str | None = None,
    ledger: str | None = None,
) -> pandas.DataFrame:
    """Predict throughput on more nodes than a search has tried.

    One row per scaling (weak and strong, or the one given) and number of nodes (2, 4 and 8 times those tried, or those
    given). Columns as `forecasts` of `parlay plan --nodes --json`; `attrs` holds `notes`.
    """
    from orchestrator.api.dataframes import forecast_frame
    from orchestrator.planning.forecast import Scaling
    from orchestrator.planning.forecast import forecast as forecast_of
    from orchestrator.planning.forecast_inputs import input_from_search
    from orchestrator.planning.prior_trials import load_prior_trials
    from orchestrator.records.lookup import find_search

    if scaling is not None:
        _require_one_of("scaling", scaling, [*Scaling])
    if nodes is not None:
        _require_counts("nodes", nodes)
    found = find_search(_name_of(search), ledger)
    inputs = input_from_search(found.record, found.spec, load_prior_trials(found.folder))
    return forecast_frame(forecast_of(inputs, [*Scaling] if scaling is None else [Scaling(scaling)], nodes))


def _drive_here(runnable: RunnableSearch, quiet: bool) -> Search:
    """Drive the search in this process until it ends; raises as `run`."""
    from dashboards.terminal.live_table import LiveView
    from orchestrator.lifecycle.drive import driving
    from orchestrator.lifecycle.signals import StopSignals
    from orchestrator.search.context import NO_CALLBACKS, DriverCallbacks

    signals = StopSignals()
    view = LiveView(sys.stderr)
    callbacks = NO_CALLBACKS if quiet else DriverCallbacks(on_event=view.update)
    with (
        _private_umask(),
        nullcontext() if quiet else view,
        driving(runnable, callbacks) as driver,
        signals.handling(),
        signals.stopping(driver),
    ):
        record = driver.run()
    if signal.SIGTERM in signals.received:
        signal.raise_signal(signal.SIGTERM)  # the driver only shut down; the process has to end
    if not record.state.is_ended:
        raise KeyboardInterrupt(f"stopped; nothing is lost: api.resume({runnable.folder.search_id!r})")
    return load(runnable.folder.path, ledger=runnable.ledger_url)


def _other_trainer(trainer: Mapping[str, Any] | None) -> tuple[str | None, list[Override]]:
    """The trainer's kind, and changes to its section; InputError without a kind."""
    if trainer is None:
        return None, []
    from orchestrator.config.loader import overrides_of

    if "kind" not in trainer:
        rule, fix = "another trainer has a kind", "one of docs/trainers.md: {'kind': 'megatron-lm', ...}"
        raise InputError.of("missing_key", "names no kind", key="trainer.kind", rule=rule, fix=fix)
    rest = {key: value for key, value in trainer.items() if key != "kind"}
    return trainer["kind"], [*overrides_of({"trainer": rest})]


def _name_of(search: Search | Path | str | None) -> str | None:
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


def _sink(quiet: bool) -> TerminalSink | None:
    return None if quiet else TerminalSink()


# -- umask


@contextmanager
def _private_umask() -> Iterator[None]:
    """Set umask 077, which all threads share, within this block. When the last of several threads leaves its block the
    old umask is restored."""
    with _default.lock:
        if not _default.blocks:
            _default.mask = os.umask(0o077)
        _default.blocks += 1
    try:
        yield
    finally:
        with _default.lock:
            _default.blocks -= 1
            if not _default.blocks:
                os.umask(_default.mask)


@dataclass
class _Default:
    """The umask to restore, and the number of open blocks."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: int = 0
    mask: int = 0o077


_default = _Default()
