"""Verbs that drive a search: run, submit, resume, cancel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import (
    AsJson,
    DryRun,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    SearchFilePath,
    SearchId,
    WorkDir,
    overrides_of,
)
from orchestrator.cli.output import Exit, answer, fail, say
from search_spaces.errors import OutsideRefused, Problem

if TYPE_CHECKING:
    from dashboards.mlflow_sync import MlflowSync
    from orchestrator.cli.find import Found
    from orchestrator.search.driver import Driver
    from orchestrator.search.session import Prepared
    from trials.folder import SearchFolder
    from trials.ledger.events import SearchRecord

SUBMIT_SCHEMA = "parlay.submit/1"
DRY_RUN_SCHEMA = "parlay.dry_run/1"
CANCEL_SCHEMA = "parlay.cancel/1"
DRIVER_START_LIMIT_S = 90.0
CANCEL_LIMIT_S = 60.0


def add_to(app: typer.Typer) -> None:
    """Register this file's verbs."""
    for verb in (run, submit, resume, cancel):
        app.command()(verb)


def run(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Search, here and now: trials run until the best layout is known or a limit is reached."""
    changes = overrides_of(
        sets, launcher__kind=launcher, search__sampler=sampler, work_dir=work_dir, ledger__url=ledger
    )
    prepared, url = _prepare(search_file, changes)
    if dry_run:
        _answer_dry_run(prepared, as_json)
        return
    from orchestrator.search.session import create_search, open_tracking

    tracking = open_tracking(prepared.spec, say)
    folder = create_search(prepared.spec, search_file.read_text(encoding="utf-8"), url)
    say(f"search {folder.search_id} in {folder.path}")
    _drive(folder, prepared, tracking, url, as_json)


def submit(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Search in the background: the driver outlives this terminal."""
    changes = overrides_of(
        sets, launcher__kind=launcher, search__sampler=sampler, work_dir=work_dir, ledger__url=ledger
    )
    prepared, url = _prepare(search_file, changes)
    if dry_run:
        _answer_dry_run(prepared, as_json)
        return
    from orchestrator.search.session import create_search, open_tracking

    open_tracking(prepared.spec, say)  # what is wrong there is said in this terminal, not in the driver's log
    folder = create_search(prepared.spec, search_file.read_text(encoding="utf-8"), url)
    pid = _start_driver(folder, url, as_json)
    answer(
        {"schema": SUBMIT_SCHEMA, "search_id": folder.search_id, "folder": str(folder.path), "pid": pid},
        as_json,
        f"search {folder.search_id} runs as process {pid}; its log is {folder.driver_log}\n"
        f"look: parlay status {folder.search_id}    end it: parlay cancel {folder.search_id}",
    )


def resume(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """Go on with a search whose driver has gone: the same trials, none twice."""
    from orchestrator.cli.find import find_search
    from orchestrator.search.session import open_tracking, prepare
    from orchestrator.search_file import spec_of

    found = find_search(search, ledger)
    prepared = prepare(spec_of(found.folder))
    _drive(found.folder, prepared, open_tracking(prepared.spec, say), found.ledger_url, as_json)


def cancel(search: SearchId = None, ledger: LedgerUrl = None, as_json: AsJson = False) -> None:
    """End a search and everything it has in flight."""
    from orchestrator.cli.find import find_search
    from orchestrator.search import lease as leases
    from trials.ledger.commands import request_cancel

    found = find_search(search, ledger)
    if found.record.state.is_ended:
        say(f"search {found.record.search_id} has already ended: {found.record.state}")
        _answer_cancel(found, found.record, as_json)
        return
    request_cancel(found.ledger_url, found.record.search_id, time.time())
    lease = leases.current(found.folder)
    held = lease is not None and lease.is_held(time.time())
    with _explained(found.folder, as_json):
        record = _wait_for_the_end(found) if held else _cancel_ourselves(found)
    _answer_cancel(found, record, as_json)


def _prepare(search_file: Path, changes: list[str]) -> tuple[Prepared, str]:
    from orchestrator.search.session import prepare
    from orchestrator.search_file import load_search_file
    from trials.ledger.place import ledger_url

    spec = load_search_file(search_file, changes)
    return prepare(spec), ledger_url(spec.ledger.url)


def _answer_dry_run(prepared: Prepared, as_json: bool) -> None:
    spec, num_layouts = prepared.spec, len(prepared.space.feasible)
    trials = min(spec.search.max_trials, num_layouts)
    answer(
        {"schema": DRY_RUN_SCHEMA, "num_layouts": num_layouts, "max_trials": trials, "spec": spec.to_json()},
        as_json,
        f"all is well: up to {trials} of {num_layouts} layouts would be tried on {spec.cluster.num_gpus} ranks"
        f" under launcher {spec.launcher.kind}; nothing was written or launched",
    )


def _drive(folder: SearchFolder, prepared: Prepared, tracking: MlflowSync | None, url: str, as_json: bool) -> None:
    """Drive the search in this process, show it, and leave with the contract's exit code."""
    from dashboards.live import LiveView
    from orchestrator.cli.summary import baseline_key
    from orchestrator.search.session import Watcher, drive

    spec = prepared.spec
    signals = _Signals()
    view = LiveView(spec.objective, spec.global_batch_size, baseline_key(spec), sys.stderr)
    with _explained(folder, as_json), signals.caught(), view:
        record = drive(folder, prepared, tracking, url, Watcher(say, view.update, signals.obey))
    _answer_search(record, folder, prepared, as_json)
    if not record.state.is_ended:
        say(f"interrupted; nothing is lost: {_resume_fix(folder)}")
        raise Exit(ExitCode.INTERRUPTED)
    if (code := _exit_code(record)) is not ExitCode.DONE:
        raise Exit(code)


@contextmanager
def _explained(folder: SearchFolder, as_json: bool) -> Iterator[None]:
    """Within this block whatever ends a driver early leaves with its exit code and the way to go on."""
    from orchestrator.search.lease import LeaseHeld, LeaseLost
    from trials.ledger.events import Fenced

    try:
        yield
    except LeaseHeld as held:
        fail(ExitCode.HELD_BY_ANOTHER, Problem("held", str(held), fix="wait for it, or cancel the search"), as_json)
    except (LeaseLost, Fenced) as lost:
        fail(ExitCode.STOPPED_EARLY, Problem("lease_lost", str(lost), fix=_resume_fix(folder)), as_json)
    except OutsideRefused as refused:
        fail(ExitCode.REFUSED, Problem("refused", str(refused), fix=_resume_fix(folder)), as_json)
    except Stopped as stopped:
        say(f"stopped; nothing is lost: {_resume_fix(folder)}")
        raise Exit(stopped.code) from None


def _exit_code(search: SearchRecord) -> ExitCode:
    from trials.ledger.events import EndReason

    if search.best_trial is not None:
        return ExitCode.DONE
    return ExitCode.REFUSED if search.end_reason is EndReason.SITE_REFUSED else ExitCode.NO_MEASUREMENT


def _answer_search(search: SearchRecord, folder: SearchFolder, prepared: Prepared, as_json: bool) -> None:
    from orchestrator.cli.summary import search_summary, show_search

    answer(search_summary(search, prepared.spec, folder), as_json)
    if not as_json:
        show_search(search, prepared.spec, folder)


class Stopped(BaseException):
    """Leave now: the state is safe wherever this strikes, since every step was written down before it was taken."""

    def __init__(self, code: ExitCode):
        super().__init__(code)
        self.code = code


class _Signals:
    """Ctrl-C once lets what runs finish, twice stops at once; SIGTERM stops at once."""

    def __init__(self) -> None:
        self._driver: Driver | None = None

    def obey(self, driver: Driver) -> None:
        """From now on a first ctrl-C is this driver's to take."""
        self._driver = driver

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Within this block signals do as this class says; the old handlers come back after it."""
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            raise Stopped(ExitCode.STOPPED_EARLY)
        if self._driver is None:
            raise Stopped(ExitCode.INTERRUPTED)
        driver, self._driver = self._driver, None
        driver.interrupt()
        say("nothing more is tried; what runs may finish (ctrl-C again stops at once)")


def _resume_fix(folder: SearchFolder) -> str:
    return f"parlay resume {folder.search_id}"


def _start_driver(folder: SearchFolder, url: str, as_json: bool) -> int:
    """Start `parlay resume` as a process of its own session and wait until it holds the search; its pid."""
    command = [sys.executable, "-m", "orchestrator.cli.main", "resume", str(folder.path), "--ledger", url]
    log = os.open(folder.driver_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    finally:
        os.close(log)
    deadline = time.monotonic() + DRIVER_START_LIMIT_S
    while not _holds(folder, child.pid):
        if child.poll() is not None:
            _fail_to_start(folder, f"the driver ended with status {child.returncode}", as_json)
        if time.monotonic() > deadline:
            child.terminate()
            _fail_to_start(folder, f"the driver did not begin within {DRIVER_START_LIMIT_S:.0f} s", as_json)
        time.sleep(0.1)
    return child.pid


def _holds(folder: SearchFolder, pid: int) -> bool:
    from orchestrator.search import lease as leases

    lease = leases.current(folder)
    return lease is not None and lease.pid == pid


def _fail_to_start(folder: SearchFolder, what: str, as_json: bool) -> NoReturn:
    words = folder.driver_log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
    problem = Problem("driver", "\n".join([what, *words]), fix=f"see {folder.driver_log}, then {_resume_fix(folder)}")
    fail(ExitCode.REFUSED, problem, as_json)


def _wait_for_the_end(found: Found) -> SearchRecord:
    """What the driver has made of the request, once it has ended the search or the time for that is over."""
    from contextlib import closing

    from trials.ledger.reader import LedgerReader

    deadline = time.monotonic() + CANCEL_LIMIT_S
    with closing(LedgerReader(found.ledger_url)) as reader:
        record = found.record
        while not record.state.is_ended and time.monotonic() < deadline:
            time.sleep(0.2)
            record = reader.search(found.record.search_id)
    return record


def _cancel_ourselves(found: Found) -> SearchRecord:
    """Nobody drives the search: take it over just to end it."""
    from orchestrator.search.session import Watcher, drive, open_tracking, prepare
    from orchestrator.search_file import spec_of

    prepared = prepare(spec_of(found.folder))
    tracking = open_tracking(prepared.spec, say)
    return drive(found.folder, prepared, tracking, found.ledger_url, Watcher(note=say))


def _answer_cancel(found: Found, record: SearchRecord, as_json: bool) -> None:
    before = {t.trial for t in found.record.trials if t.state.is_ended}
    cancelled = [f"{t.trial}" for t in record.trials if t.state == "cancelled" and t.trial not in before]
    unreached = [f"{record.search_id}.{a.trial}.{a.attempt}" for a in record.in_flight]
    answer(
        {"schema": CANCEL_SCHEMA, "search_id": record.search_id, "cancelled": cancelled, "unreached": unreached},
        as_json,
        f"search {record.search_id} is {record.state}; {len(cancelled)} trials were cancelled",
    )
    if unreached:
        say("not ended yet: " + ", ".join(unreached))
        raise Exit(ExitCode.CANCEL_INCOMPLETE)
