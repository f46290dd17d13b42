"""Creation and reopening of searches: everything is validated before anything is written."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.search import validate_space
from orchestrator.diagnostics.preflight.slurm_site import require_site
from orchestrator.diagnostics.preflight.work_dir import WORK_DIR_FIX, work_dir_error
from orchestrator.launchers.private_tmp import remove_owner, remove_unfinished, write_owner
from orchestrator.lifecycle.drive import RunnableSearch
from orchestrator.lifecycle.lock import acquire_search
from orchestrator.lifecycle.observers import make_tracking, open_tracking
from orchestrator.planning.prior_trials import collect_prior_trials, save_prior_trials
from orchestrator.records.integrity import YAML_SHA256, yaml_sha256
from orchestrator.records.lookup import OwnSearch
from orchestrator.search.code_snapshot import snapshot_code
from search_spaces.errors import ExternalError, InputError
from search_spaces.schema.yaml_document import SourceLocation
from search_spaces.search_space import SearchSpace
from slurm.environment import inherited_options
from trials.files.folders import SearchFolder, write_json, write_text
from trials.ledger.events import EventKind
from trials.ledger.location import ledger_url
from trials.ledger.reader import LedgerReader
from trials.ledger.writer import LedgerWriter

_log = logging.getLogger(__name__)


_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class SubmitAnswer(Answer):
    """Printed by submit with one search file and by resume --as-job, and the service's answer to a new search. A
    command gives `pid`, `job_id` or the two cron tables."""

    schema_: Literal["parlay.submit/1"] = "parlay.submit/1"
    search_id: str
    folder: str
    pid: int | None = None
    """Process of the driver, or of the service that drives the search."""
    job_id: str | None = None
    """Slurm job of the driver, of --as-job."""
    crontab: str | None = None
    """Line for crontab, of --cron."""
    scrontab: list[str] | None = None
    """Lines for scrontab, of --cron."""
    notes: tuple[str, ...] = ()
    """The service's remarks on the search file; a command writes them to standard error."""


class FailedSubmission(AnswerPart):
    """A search file whose search could not be created, or got no driver."""

    file: str
    message: str


class SubmitManyAnswer(Answer):
    """Printed by submit with several search files. Exit code 6 where one was refused."""

    schema_: Literal["parlay.submit_many/1"] = "parlay.submit_many/1"
    searches: list[SubmitAnswer]
    refused: list[FailedSubmission]


@dataclass(frozen=True)
class ValidatedSearch:
    """A new search that has passed all checks and is not written yet."""

    spec: SearchSpec
    space: SearchSpace
    ledger_url: str


def validate_search(spec: SearchSpec, default_ledger: str | None = None) -> ValidatedSearch:
    """Check a new search before anything is written or launched. Raises InputError or ExternalError.

    `default_ledger` is the URL for a search that names none; without it Parlay's default.
    """
    spec = with_environment_options(spec, os.environ)
    url = default_ledger if spec.ledger.url is None and default_ledger is not None else ledger_url(spec.ledger.url)
    space = validate_space(spec)
    require_site(spec, space)
    return ValidatedSearch(spec, space, url)


def reopen_search(found: OwnSearch, is_ending: bool = False, contacts_tracking: bool = True) -> RunnableSearch:
    """Prepare a recorded search for its next driver.

    One that has ended, or `is_ending`, as each that was asked to end, gets no candidates: it needs neither its code nor
    its files, which may have changed or gone.
    """
    is_ending = is_ending or _is_asked_to_end(found)
    candidates = () if is_ending or found.record.state.is_ended else validate_space(found.spec).layouts
    tracking = open_tracking(found.spec) if contacts_tracking else make_tracking(found.spec)
    return RunnableSearch(found.folder, found.spec, candidates, tracking, found.ledger_url, is_ending)


def _is_asked_to_end(found: OwnSearch) -> bool:
    """True if a cancel is pending. What a ledger that cannot be read has is found by the driver, which repairs it."""
    try:
        with closing(LedgerReader(found.ledger_url)) as reader:
            return bool(reader.pending_commands(found.record.search_id))
    except (ExternalError, InputError, OSError):
        return False


def with_environment_options(spec: SearchSpec, environ: Mapping[str, str]) -> SearchSpec:
    """Take account, partition and similar options from sbatch's environment variables where the file sets none.

    Jobs are submitted without these variables, because they override a job's script. So they are noted and stored in
    the search, for any later driver. InputError names the variable of an invalid value.
    """
    if not spec.launcher.uses_slurm:
        return spec
    given = [key.removeprefix("launcher.slurm.") for key in spec.locations]
    inherited = spec.launcher.slurm.unset_options(inherited_options(environ), given)
    if not inherited:
        return spec
    section = spec.launcher.slurm.with_inherited(inherited)
    taken = [f"launcher.slurm.{name} {getattr(section, name)} ({o.variable})" for name, o in inherited.items()]
    _log.info(f"from the environment: {', '.join(taken)}")
    locations = {f"launcher.slurm.{name}": SourceLocation(option.variable, None) for name, option in inherited.items()}
    launcher = spec.launcher.model_copy(update={"slurm": section})
    return replace(spec, launcher=launcher, locations={**spec.locations, **locations})


@contextmanager
def create_search(search: ValidatedSearch) -> Iterator[RunnableSearch]:
    """Create the new search, with the prior trials it starts from: its folder with a snapshot of the code, its journal
    and its ledger row. Its lease is held within this block.

    The folder is complete before it gets its name, and removed if the search cannot be recorded. What a killed process
    leaves is removed when the next search is created. InputError when `work_dir` or the ledger cannot be used.
    """
    spec, url = search.spec, search.ledger_url
    tracking = open_tracking(spec)
    folder, code = _write_folder(spec, url)
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(acquire_search(folder, url))
            row = spec.to_json() | {"folder": str(folder.path), YAML_SHA256: yaml_sha256(spec.yaml_text)}
            lock.history.record(EventKind.SEARCH_CREATED, spec=row, code_hash=code)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        yield RunnableSearch(folder, spec, search.space.layouts, tracking, url, lock=lock)


def _write_folder(spec: SearchSpec, ledger_url: str) -> tuple[SearchFolder, str]:
    """Write the folder of a new search, all but its journal; return it and the hash of its code."""
    prior_trials = collect_prior_trials(spec, ledger_url)
    for message in prior_trials.messages:
        _log.info(message)
    search_id = f"{spec.name}-{''.join(secrets.choice(_ID_LETTERS) for _ in range(6))}"
    folder = SearchFolder(spec.work_dir / search_id)
    part = SearchFolder(folder.path.with_name(f".{search_id}.part"))
    with closing(LedgerWriter(ledger_url)):  # created, migrated or rejected before anything else is written
        pass
    with suppress(OSError):
        remove_unfinished(spec.work_dir)
    try:
        part.path.mkdir(mode=0o700, parents=True)
        write_owner(part.path)
        write_text(part.yaml, spec.yaml_text)
        write_json(part.json, spec.to_json())
        save_prior_trials(part, prior_trials)
        code = snapshot_code(part.code)
        remove_owner(part.path)
        part.path.rename(folder.path)
    except OSError as error:
        raise work_dir_error(spec.work_dir, error.strerror or str(error), WORK_DIR_FIX) from error
    finally:
        shutil.rmtree(part.path, ignore_errors=True)
    return folder, code
