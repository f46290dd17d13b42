"""A search that begins or goes on: everything is checked first, then it is written down."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from dashboards.mlflow.sync import MlflowSync
from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.common.private_tmp import remove_owner, remove_unfinished, write_owner
from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.launchers.local.launcher import local_slots
from orchestrator.lifecycle.drive import open_tracking
from orchestrator.lifecycle.lock import acquire_search
from orchestrator.planning.candidates import candidates_of, require_affordable, require_pilot_room
from orchestrator.planning.prior_trials import NO_PRIOR_TRIALS, PriorTrials, collect_prior_trials, save_prior_trials
from orchestrator.preflight.integrity import YAML_SHA256, yaml_sha256
from orchestrator.preflight.slurm_site import require_site
from orchestrator.preflight.trainer import ranks_run_here, require_torch, require_trainer
from orchestrator.preflight.work_dir import WORK_DIR_FIX, require_directories, work_dir_error
from orchestrator.records.lookup import LocatedSearch
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.schema.yaml_document import SourceLocation
from search_spaces.search_space import SearchSpace
from slurm.environment import inherited_options
from trials.files.folders import SearchFolder, write_json, write_text
from trials.ledger.events import EventKind
from trials.ledger.location import ledger_url
from trials.ledger.writer import LedgerWriter

_ID_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


@dataclass(frozen=True)
class ValidatedSearch:
    """A new search that may begin; nothing is written yet."""

    spec: SearchSpec
    space: SearchSpace
    ledger_url: str


@dataclass(frozen=True)
class RunnableSearch:
    """A search that is written down and can be driven; `candidates` is what may be tried."""

    folder: SearchFolder
    spec: SearchSpec
    candidates: Sequence[Layout]
    tracking: MlflowSync | None
    ledger_url: str


def validate_search(
    spec: SearchSpec, note: Callable[[str], None], default_ledger: str | None = None
) -> ValidatedSearch:
    """Whatever can be known to be wrong before anything is written or launched, as InputError or ExternalError.

    `default_ledger` is the URL where the search names none; without it Parlay's own.
    """
    spec = with_carried_options(spec, os.environ, note)
    url = default_ledger if spec.ledger.url is None and default_ledger is not None else ledger_url(spec.ledger.url)
    space = prepare(spec)
    require_site(spec, space, note)
    return ValidatedSearch(spec, space, url)


def create_runnable_search(search: ValidatedSearch, note: Callable[[str], None]) -> RunnableSearch:
    """Write the new search down, with what earlier ones teach it. InputError as `create_search`."""
    tracking = open_tracking(search.spec, note)
    prior_trials = collect_prior_trials(search.spec, search.ledger_url)
    for words in prior_trials.messages:
        note(words)
    folder = create_search(search.spec, search.ledger_url, prior_trials, note)
    return RunnableSearch(folder, search.spec, search.space.feasible, tracking, search.ledger_url)


def reopen_search(found: LocatedSearch, note: Callable[[str], None]) -> RunnableSearch:
    """A search as it goes on; one that has ended needs nothing but its place, and is only left in order."""
    candidates = () if found.record.state.is_ended else prepare(found.spec).feasible
    return RunnableSearch(found.folder, found.spec, candidates, open_tracking(found.spec, note), found.ledger_url)


def with_carried_options(spec: SearchSpec, environ: Mapping[str, str], note: Callable[[str], None]) -> SearchSpec:
    """The search with the account, partition and the like that this shell sets for sbatch, where its file names none.

    Jobs are submitted without those variables, since they would override what stands in a job's script; so they are
    said, and written into the search, whoever drives it later. InputError names the variable of a bad one.
    """
    if not spec.launcher.uses_slurm:
        return spec
    given = [key.removeprefix("launcher.slurm.") for key in spec.locations]
    inherited = spec.launcher.slurm.missing_of(inherited_options(environ), given)
    if not inherited:
        return spec
    section = spec.launcher.slurm.with_inherited(inherited)
    words = [f"launcher.slurm.{name} {getattr(section, name)} ({o.variable})" for name, o in inherited.items()]
    note(f"from the environment: {', '.join(words)}")
    locations = {f"launcher.slurm.{name}": SourceLocation(option.variable, None) for name, option in inherited.items()}
    launcher = spec.launcher.model_copy(update={"slurm": section})
    return replace(spec, launcher=launcher, locations={**spec.locations, **locations})


def prepare(spec: SearchSpec) -> SearchSpace:
    """Check what can be checked without writing or launching anything; InputError says what is wrong, and where.

    Returns what may be tried.
    """
    try:
        require_directories(spec)
        spec.trainer.data.pinned(spec.model)  # the file may have gone since the search began
        space = candidates_of(spec)
        require_affordable(spec, space)
        require_pilot_room(spec, space)
        if ranks_run_here(spec):
            local_slots(spec.cluster, spec.search.parallel_trials, os.environ)
        require_trainer(spec)
        require_torch(spec)
    except InputError as error:
        raise with_locations(error, spec) from error
    return space


def create_search(
    spec: SearchSpec,
    ledger_url: str,
    prior_trials: PriorTrials = NO_PRIOR_TRIALS,
    note: Callable[[str], None] = lambda text: None,
) -> SearchFolder:
    """Write a new search down: its folder with the code all its trials will run and the trials of others that it learns
    from, its journal and its ledger row.

    The folder is whole before it has its name, and gone again when the search could not be recorded, so neither a
    crash nor a refusal leaves half a search; what a kill leaves is removed when the next one is begun. InputError when
    `work_dir` or the ledger cannot be used.
    """
    search_id = f"{spec.name}-{''.join(secrets.choice(_ID_LETTERS) for _ in range(6))}"
    folder = SearchFolder(spec.work_dir / search_id)
    part = SearchFolder(folder.path.with_name(f".{search_id}.part"))
    with closing(LedgerWriter(ledger_url)):  # made, migrated or refused before anything else is written
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
    try:
        with acquire_search(folder, ledger_url, note) as lock, lock.open_history() as history:
            row = spec.to_json() | {"folder": str(folder.path), YAML_SHA256: yaml_sha256(spec.yaml_text)}
            history.record(EventKind.SEARCH_CREATED, spec=row, code_hash=code)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return folder
