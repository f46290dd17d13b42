"""`parlay advance`: one turn of a search's driver, started repeatedly by cron or scrontab."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.drive import exit_code_of, print_search
from orchestrator.cli.endings import resumable
from orchestrator.cli.options import LedgerUrl, SearchId
from orchestrator.cli.output import Exit, exit_with, log, print_result, prints_json, warn
from orchestrator.lifecycle.exit_codes import ExitCode
from orchestrator.lifecycle.logs import use_times_in
from search_spaces.errors import ExternalError, InputError

if TYPE_CHECKING:
    from orchestrator.config.schema.launcher import LauncherSection
    from orchestrator.records.lookup import OwnSearch
    from trials.files.folders import SearchFolder
    from trials.ledger.events import SearchRecord

_INHERITED_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "PARLAY_HOME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
"""Variables that select programs, ledger and cluster; the trials' jobs inherit them."""


def advance(
    search: SearchId = None,
    every: Annotated[
        bool, typer.Option("--all", help="Advance all searches of the ledger whose jobs run without a driver.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    if every:
        _advance_all(ledger)
        return
    from orchestrator.records.lookup import find_own_search

    found = find_own_search(search, ledger)
    require_detached_jobs(found.spec.launcher, "launcher.kind")
    use_times_in(found.folder.driver_log)
    with resumable(found.folder):
        record = _advance(found)
    if prints_json.get():
        print_search(record, found.folder, found.spec)
    else:
        log(_format_record(record))
    if record.state.is_ended:
        exit_with(exit_code_of(record))


def require_detached_jobs(launcher: LauncherSection, key: str) -> None:
    """Raise InputError if the search's trials would end with the driver's process, or are steps of a pilot: it would
    be idle between turns, and an idle pilot soon ends."""
    if launcher.kind != "slurm":
        raise InputError.of(
            "advance",
            f"launcher.kind is {launcher.kind}",
            rule="a driver that exits after each turn needs trials that run without it",
            fix="--launcher slurm, or `parlay submit` without --cron",
            key=key,
            value=launcher.kind,
        )


def write_cron_script(folder: SearchFolder, ledger_url: str) -> None:
    """Write the script for cron: this interpreter, this shell's variables for Slurm, absolute paths."""
    from orchestrator.lifecycle.driver_job import parlay_command
    from slurm.driver_script import render_repeated
    from trials.files.folders import write_text

    path = folder.path.absolute()
    argv = parlay_command("advance", str(path), "--ledger", ledger_url)
    environ = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    write_text(folder.cron_script, render_repeated(argv, path / folder.driver_log.name, environ))


def _advance(found: OwnSearch) -> SearchRecord:
    """Drive the search for one turn and return its record. A search that has ended is only finished, once."""
    from orchestrator.config.schema.notify import NotifyEvent
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.lifecycle.drive import driving
    from orchestrator.lifecycle.notify import is_notification_due
    from orchestrator.lifecycle.signals import StopSignals

    is_notified = not is_notification_due(found.folder, found.spec, NotifyEvent.END)
    if found.record.state.is_ended and is_notified and found.folder.measured.exists():
        return found.record
    started = reopen_search(found, contacts_tracking=False)
    signals = StopSignals()
    with driving(started) as driver, signals.handling(), signals.stopping(driver):
        return driver.advance()


def _format_record(record: SearchRecord) -> str:
    from trials.analysis.verdict import display_state

    ended = sum(trial.state.is_ended for trial in record.trials)
    state = display_state(record.state, record.end_reason)
    words = f"search {record.search_id} is {state}: {ended} of {len(record.trials)} trials have ended"
    return f"{words}; it needs no more turns" if record.state.is_ended else words


def _advance_all(ledger: str | None) -> None:
    """Advance every unfinished search; errors of one do not stop the others."""
    from orchestrator.records.lookup import find_search, own_search
    from orchestrator.records.summary import AdvanceAllAnswer, FailedAdvance, StatusAnswer, status_of
    from orchestrator.search.lease import LeaseHeld, LeaseLost
    from trials.ledger.events import FencedError
    from trials.ledger.location import ledger_to_read
    from trials.ledger.reader import LedgerReader

    url = ledger_to_read(ledger)
    with closing(LedgerReader(url)) as reader:
        ids = [summary.search_id for summary in reader.searches() if not summary.state.is_ended]
    advanced: list[StatusAnswer] = []
    held: list[str] = []
    refused: list[FailedAdvance] = []
    for search_id in ids:
        try:
            found = find_search(search_id, url)
            if found.spec.launcher.kind != "slurm":
                continue
            record = _advance(own_search(found.folder, url))
        except LeaseHeld as error:
            held.append(search_id)
            warn(str(error))
        except (InputError, ExternalError, OSError, LeaseLost, FencedError) as error:
            refused.append(FailedAdvance(search_id=search_id, message=str(error)))
            warn(f"{search_id}: {error}")
        else:
            advanced.append(status_of(record, found.spec, found.folder))
            log(_format_record(record))
    print_result(AdvanceAllAnswer(searches=advanced, held=held, refused=refused))
    if refused or held:
        raise Exit(ExitCode.REFUSED if refused else ExitCode.HELD_BY_ANOTHER)
