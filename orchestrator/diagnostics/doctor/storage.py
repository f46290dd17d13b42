"""Checks of Parlay's home, the ledger and MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.sync import MlflowSync
from dashboards.schema import TrackingSection
from dashboards.text import mask_credentials
from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, problem_findings, warning
from orchestrator.diagnostics.doctor.folders import write_access_findings
from search_spaces.errors import ExternalError, InputError
from trials.files.text import plural
from trials.ledger.location import (
    NETWORK_FILE_SYSTEMS,
    configured_home,
    existing_ledger_url,
    file_system,
    flock_description,
    home_folder,
    ledger_url,
)
from trials.ledger.reader import LedgerReader

MIN_FREE_GIB = 0.2
_SQLITE = "sqlite:///"


def check_home() -> Iterator[Finding]:
    """Check Parlay's home; it is created if absent."""
    home = home_folder()
    yield ok("home", f"{home} on {file_system(home) or 'a file system of unknown type'}, private to you")
    yield from write_access_findings(home)
    if (wanted := configured_home()) != home:
        words = f"{wanted} is on {flock_description(wanted)}; so {home} is used, which is local to this machine"
        yield note("locks", words, "set PARLAY_HOME to a folder on local disk to choose where")
    found = os.statvfs(home)
    free_gib = found.f_bavail * found.f_frsize / 2**30
    if free_gib < MIN_FREE_GIB:
        words = f"{free_gib:.2f} GiB are free at {home}, where the ledger and MLflow's file are"
        yield warning("home_space", words, "make room, or set PARLAY_HOME to a folder on local disk")


def check_ledger(given: str | None) -> Iterator[Finding]:
    """Check that the ledger can be read and has a known schema. A missing file is not created."""
    url = ledger_url(given)
    if existing_ledger_url(given) is None:
        path = Path(url.removeprefix(_SQLITE))
        if os.access(path.parent, os.W_OK):
            yield ok("ledger", f"{path} will be created by the first search")
        else:
            words = f"ledger.url: no file can be created in {path.parent}"
            yield error("ledger", words, "use a file in an existing folder that you can write to")
        return
    try:
        with closing(LedgerReader(url)) as reader:
            count = len(reader.searches())
    except ExternalError as refused:
        fix = refused.fix or "check that the database runs and accepts connections from here; PGPASSWORD or ~/.pgpass"
        yield error("ledger", f"{mask_credentials(url)}: {refused}", fix)
        return
    yield ok("ledger", f"{mask_credentials(url)} responds; it has {plural(count, 'search')}")


def check_mlflow(tracking: TrackingSection) -> Iterator[Finding]:
    """Check that MLflow has the experiment and accepts writes. A missing file is not created."""
    if not tracking.enabled:
        yield ok("mlflow", "tracking.enabled is false: nothing is sent to MLflow")
        return
    uri = tracking_uri(tracking.mlflow_uri, home_folder())
    if uri.startswith(_SQLITE) and (kind := file_system(Path(uri.removeprefix(_SQLITE)))) in NETWORK_FILE_SYSTEMS:
        words = f"{uri} is on {kind}, where SQLite's locks do not work between machines"
        yield warning("mlflow_locks", words, "write from one machine only, or use a server: tracking.mlflow_uri")
    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).exists():
        yield ok("mlflow", f"{uri} will be created by the first search")
        return
    try:
        remark = MlflowSync(tracking.mlflow_uri, tracking.experiment, home_folder()).check()
    except InputError as refused:
        yield from problem_findings(refused.problems)
        return
    if remark is not None:
        fix = "start it, or set another tracking.mlflow_uri; parlay sync sends missing runs later"
        yield warning("mlflow", remark, fix)
    else:
        yield ok("mlflow", f"{mask_credentials(uri)} has the writable experiment {tracking.experiment}")
