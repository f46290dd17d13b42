"""`parlay advance`: one turn of a search's driver, started repeatedly by cron or scrontab."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.driver_errors import exit_code_of, exit_on_driver_errors, print_search
from orchestrator.cli.options import AsJson, LedgerUrl, SearchId
from orchestrator.cli.output import Exit, log, print_result, warn
from orchestrator.common.exit_codes import ExitCode
from orchestrator.common.logs import use_times_in
from search_spaces.errors import ExternalError, InputError

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.records.lookup import OwnSearch
    from orchestrator.schema.launcher import LauncherSection
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
    as_json: AsJson = False,
) -> None:
    """Drive a search for one turn and exit: for cron and scrontab, if no process may stay on a login node."""
    if every:
        _advance_all(ledger, as_json)
        return
    from orchestrator.records.lookup import find_own_search

    found = find_own_search(search, ledger)
    require_detached_jobs(found.spec.launcher, "launcher.kind")
    use_times_in(found.folder.driver_log)
    with exit_on_driver_errors(found.folder, as_json):
        record = _advance(found)
    if as_json:
        print_search(record, found.folder, found.spec, as_json)
    else:
        log(_format_record(record))
    if record.state.is_ended and (code := exit_code_of(record)) is not ExitCode.SUCCESS:
        raise Exit(code)


def require_detached_jobs(launcher: LauncherSection, key: str) -> None:
    """Raise InputError if the search's trials would end with the driver's process."""
    if launcher.kind != "slurm":
        raise InputError.of(
            "advance",
            f"launcher.kind is {launcher.kind}",
            rule="a driver that exits after each turn needs trials that run without it",
            fix="--launcher slurm, or `parlay submit` without --cron",
            key=key,
            value=launcher.kind,
        )


def _has_detached_jobs(launcher: LauncherSection) -> bool:
    """True if trials run without a driver. A pilot would be idle between turns, and an idle pilot soon ends."""
    return launcher.kind == "slurm"


def write_cron_script(folder: SearchFolder, ledger_url: str) -> None:
    """Write the script for cron: this interpreter, this shell's variables for Slurm, absolute paths."""
    from orchestrator.lifecycle.driver_job import parlay_command
    from slurm.crontab import render_repeated
    from trials.files.folders import write_text

    path = folder.path.absolute()
    argv = parlay_command("advance", str(path), "--ledger", ledger_url)
    environ = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    write_text(folder.cron_script, render_repeated(argv, path / folder.driver_log.name, environ))


def cron_lines(folder: SearchFolder, spec: SearchSpec) -> tuple[str, list[str]]:
    """Return the crontab line and the scrontab lines for this search."""
    from orchestrator.lifecycle.driver_status import cron_job_name
    from slurm.crontab import crontab_line, scrontab_lines
    from slurm.driver_script import driver_options

    script, options = folder.cron_script.absolute(), driver_options(spec.launcher.slurm.job_options())
    return crontab_line(script), scrontab_lines(script, cron_job_name(folder.search_id), options)


def _advance(found: OwnSearch) -> SearchRecord:
    """Drive the search for one turn and return its record. A search that has ended is only finished, once."""
    from orchestrator.lifecycle.create import reopen_search
    from orchestrator.lifecycle.drive import driving
    from orchestrator.lifecycle.notify import is_notification_due
    from orchestrator.lifecycle.signals import DriverSignals
    from orchestrator.schema.notify import NotifyEvent

    is_notified = not is_notification_due(found.folder, found.spec, NotifyEvent.END)
    is_finished = found.folder.measured.exists() and is_notified
    if found.record.state.is_ended and is_finished:
        return found.record
    started = reopen_search(found, contacts_tracking=False)
    with driving(started) as driver, DriverSignals().handling(driver):
        return driver.advance()


def _format_record(record: SearchRecord) -> str:
    from trials.analysis.verdict import display_state

    ended = sum(trial.state.is_ended for trial in record.trials)
    state = display_state(record.state, record.end_reason)
    words = f"search {record.search_id} is {state}: {ended} of {len(record.trials)} trials have ended"
    return f"{words}; it needs no more turns" if record.state.is_ended else words


def _advance_all(ledger: str | None, as_json: bool) -> None:
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
            if not _has_detached_jobs(found.spec.launcher):
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
    print_result(AdvanceAllAnswer(searches=advanced, held=held, refused=refused), as_json)
    if refused or held:
        raise Exit(ExitCode.REFUSED if refused else ExitCode.HELD_BY_ANOTHER)
