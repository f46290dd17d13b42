"""One driver's turn on a search: put the rooms together, take the lease, run the loop, leave everything in order."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dashboards.mlflow_sync import MlflowSync, SyncReport
from dashboards.mlflow_worker import MlflowWorker
from orchestrator.code_snapshot import snapshot_code
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.factory import make_launcher
from orchestrator.launchers.local import local_slots
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.write import write_recipe
from orchestrator.samplers.factory import make_sampler
from orchestrator.search import lease as leases
from orchestrator.search.attempts import TrialProgram
from orchestrator.search.driver import Driver, Goal, Hooks
from orchestrator.search.history import History
from orchestrator.search.limits import Limits
from orchestrator.search_file import SearchSpec, candidates_of
from search_spaces.errors import InputError
from search_spaces.space import SearchSpace
from trials.folder import SearchFolder, write_json, write_text
from trials.ledger.events import Event, EventKind, SearchRecord
from trials.ledger.journal import Journal
from trials.ledger.place import home_folder
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter
from trials.ranking import rank

MLFLOW_SCHEMA = "parlay.mlflow/1"
MLFLOW_LAST_CALL_S = 30.0
"""How long the end of a search waits for MLflow to take the rest."""

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True)
class Watcher:
    """Who is told while a search runs: remarks for the user, changes of state, and the driver, once there is one."""

    note: Callable[[str], None] = lambda text: None
    on_event: Callable[[SearchRecord, Event], None] = lambda search, event: None
    on_driver: Callable[[Driver], None] = lambda driver: None


@dataclass(frozen=True)
class Prepared:
    """A search that could start now: everything that bad input can break has been looked at, nothing is launched."""

    spec: SearchSpec
    space: SearchSpace


def prepare(spec: SearchSpec) -> Prepared:
    """Check what can be checked without writing or launching anything; InputError says what is wrong."""
    space = candidates_of(spec)
    if spec.launcher.kind == "local" or (spec.launcher.kind == "ray" and spec.launcher.address is None):
        local_slots(spec.cluster, spec.search.parallel_trials, os.environ)
        _require_interpreter(python_of(spec))
    return Prepared(spec, space)


def open_tracking(spec: SearchSpec, note: Callable[[str], None]) -> MlflowSync | None:
    """The way to MLflow, asked for its experiment before the first trial; None where the file wants no tracking.

    InputError for what the user has to change there; a store that is only out of reach is noted.
    """
    if not spec.tracking.enabled:
        return None
    sync = MlflowSync(spec.tracking.mlflow_uri, spec.tracking.experiment, home_folder())
    if (remark := sync.check()) is not None:
        note(remark)
    return sync


def create_search(spec: SearchSpec, yaml_text: str, ledger_url: str) -> SearchFolder:
    """Write a new search down: its folder with the code all its trials will run, its journal and its ledger row.

    The folder is whole before it has its name, so a crash leaves no half a search. InputError when `work_dir` cannot
    be used.
    """
    search_id = f"{spec.name}-{''.join(secrets.choice(_ID_LETTERS) for _ in range(6))}"
    folder = SearchFolder(_work_dir(spec) / search_id)
    part = SearchFolder(folder.path.with_name(f".{search_id}.part"))
    try:
        part.path.mkdir(mode=0o700)
        write_text(part.yaml, yaml_text)
        write_json(part.json, spec.to_json())
        code_hash = snapshot_code(part.code)
        part.path.rename(folder.path)
    finally:
        shutil.rmtree(part.path, ignore_errors=True)
    with _hold(folder, ledger_url) as hold, hold.opened_history(time.time) as history:
        row = spec.to_json() | {"folder": str(folder.path)}
        history.record(EventKind.SEARCH_CREATED, spec=row, code_hash=code_hash)
    return folder


def drive(
    folder: SearchFolder, prepared: Prepared, tracking: MlflowSync | None, ledger_url: str, watcher: Watcher
) -> SearchRecord:
    """Run the search to its end, or until it is interrupted; one that has ended is only left in order.

    Raises LeaseHeld while another driver holds the search, LeaseLost when one took it over, LaunchRefused when the
    launcher cannot be had, LedgerUnavailable. Whatever is raised, the search can be resumed.
    """
    spec = prepared.spec
    with ExitStack() as stack:
        hold = stack.enter_context(_hold(folder, ledger_url))
        launcher, remark = make_launcher(
            spec.launcher, parallel_trials=spec.search.parallel_trials, cluster=spec.cluster
        )
        stack.callback(launcher.close)
        if remark:
            watcher.note(remark)
        history = stack.enter_context(hold.opened_history(launcher.now))
        reader = stack.enter_context(closing(LedgerReader(ledger_url)))
        worker = MlflowWorker(tracking, folder, watcher.note) if tracking else None

        def on_event(search: SearchRecord, event: Event) -> None:
            if search.state.is_ended:
                _settle_commands(hold, reader, search)
                write_best_recipe(folder, spec, search)
            if worker:
                worker.hand(search)
            watcher.on_event(search, event)

        hooks = Hooks(on_event, lambda: bool(reader.pending_commands(folder.search_id)), hold.keep)
        driver = _driver(folder, prepared, history, launcher, hooks, watcher.note)
        watcher.on_driver(driver)
        search = driver.run()
        if search.state.is_ended and not folder.recipe.exists():
            write_best_recipe(folder, spec, search)
        if worker:
            _last_call(worker, search, folder, watcher.note)
        return search


def program_of(folder: SearchFolder, spec: SearchSpec) -> TrialProgram:
    """What all attempts of the search share."""
    trainer = {"kind": spec.trainer.kind}
    return TrialProgram(
        folder, spec.model, spec.cluster, spec.measure, python_of(spec), trainer=trainer, seed=spec.search.seed
    )


def python_of(spec: SearchSpec) -> str:
    """The interpreter of the ranks: the one the file names, or the one that runs Parlay."""
    return spec.trainer.python or sys.executable


def write_best_recipe(folder: SearchFolder, spec: SearchSpec, search: SearchRecord) -> Path | None:
    """The recipe of the best layout so far; None where nothing was measured."""
    ranking = rank(search.trials, spec.objective, spec.global_batch_size)
    best = ranking.best
    if best is None or best.last_attempt is None:
        return None
    baseline = next((t for t in search.trials if spec.baseline and t.layout.key == spec.baseline.key), None)
    trial_spec = program_of(folder, spec).spec(best, best.last_attempt)
    return write_recipe(folder.recipe, RecipeSource(search, best, trial_spec, ranking, baseline), folder.code)


def _driver(
    folder: SearchFolder,
    prepared: Prepared,
    history: History,
    launcher: Launcher,
    hooks: Hooks,
    note: Callable[[str], None],
) -> Driver:
    spec, wanted = prepared.spec, prepared.spec.search
    candidates = list(prepared.space.feasible)
    sampler = make_sampler(wanted.sampler, candidates, wanted.seed, note)
    goal = Goal(spec.objective, spec.global_batch_size, () if spec.baseline is None else (spec.baseline,))
    limits = Limits(wanted.max_trials, wanted.parallel_trials, wanted.budget_node_hours, wanted.max_wall_time_s)
    return Driver(history, program_of(folder, spec), sampler, launcher, goal, limits, hooks)


@dataclass
class _Hold:
    """A driver's hold on a search: its lease, which runs on real time, and the ledger it may write."""

    folder: SearchFolder
    ledger: LedgerWriter
    lease: leases.Lease

    @contextmanager
    def opened_history(self, clock: Callable[[], float]) -> Iterator[History]:
        """The search as its journal tells it, the ledger brought up to it; `clock` is the launcher's."""
        with closing(Journal(self.folder.journal)) as journal:
            history = History(self.folder.search_id, journal, self.ledger, self.lease.fencing, clock)
            if not history.is_empty:
                self._copy_lease()
            yield history

    def keep(self) -> None:
        """Renew the lease when a heartbeat is due; LeaseLost when another driver took over."""
        if time.time() - self.lease.heartbeat_at >= leases.HEARTBEAT_S:
            self.lease = leases.renew(self.folder, self.lease, time.time())
            self._copy_lease()

    def _copy_lease(self) -> None:
        self.ledger.copy_lease(self.folder.search_id, self.lease.fencing, self.lease.to_json())


@contextmanager
def _hold(folder: SearchFolder, ledger_url: str) -> Iterator[_Hold]:
    lease = leases.acquire(folder, time.time())
    try:
        with closing(LedgerWriter(ledger_url)) as ledger:
            yield _Hold(folder, ledger, lease)
    finally:
        with suppress(leases.LeaseLost):  # then there is nothing left to free
            leases.release(folder, lease, time.time())


def _settle_commands(hold: _Hold, reader: LedgerReader, search: SearchRecord) -> None:
    """Whatever was asked of a search that has ended is done, or too late."""
    if pending := reader.pending_commands(search.search_id):
        hold.ledger.settle_commands(search.search_id, pending[-1].id, time.time())


def _last_call(worker: MlflowWorker, search: SearchRecord, folder: SearchFolder, note: Callable[[str], None]) -> None:
    worker.hand(search)
    if unsent := worker.finish(MLFLOW_LAST_CALL_S):
        note(f"MLflow did not take {len(unsent)} runs; `parlay resume {search.search_id}` sends them again")
    if worker.report is not None:
        write_json(folder.mlflow, _mlflow_json(worker.report))


def _mlflow_json(report: SyncReport) -> dict[str, str]:
    return {"schema": MLFLOW_SCHEMA, "uri": report.uri, "run_id": report.run_id}


def _work_dir(spec: SearchSpec) -> Path:
    """The folder in which searches get theirs, made if it is missing."""
    path = spec.work_dir
    inside = next((p for p in (path, *path.parents) if SearchFolder(p).journal.exists()), None)
    if inside is not None:
        raise _bad_work_dir(path, f"lies inside the search {inside.name}", "name a folder outside of any search")
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise _bad_work_dir(path, error.strerror or str(error), "name a folder that you may write to") from error
    if found.st_mode & 0o002 and not found.st_mode & 0o1000:
        raise _bad_work_dir(path, "can be written by everybody", f"chmod o-w {path}")
    if not os.access(path, os.W_OK | os.X_OK):
        raise _bad_work_dir(path, "cannot be written", "name a folder that you may write to")
    return path


def _bad_work_dir(path: Path, message: str, fix: str) -> InputError:
    return InputError.of("work_dir", f"{path} {message}", key="work_dir", value=str(path), fix=fix)


def _require_interpreter(python: str) -> None:
    if shutil.which(python) is None:
        raise InputError.of(
            "interpreter",
            f"{python} is not an executable on this machine",
            key="trainer.python",
            value=python,
            fix="name the Python whose torch the ranks shall use",
        )
