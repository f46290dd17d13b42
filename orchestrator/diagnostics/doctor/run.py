"""Runs all checks in order. A check that hangs or fails loses only its own findings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from dashboards.schema import TrackingSection
from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.diagnostics.doctor.engine_packages import engines_of_search
from orchestrator.diagnostics.doctor.finding import Area, DoctorReport, Finding, error, note, ok, problem_findings
from orchestrator.diagnostics.doctor.folders import check_folder
from orchestrator.diagnostics.doctor.job_limits import check_jobs
from orchestrator.diagnostics.doctor.machine import check_machine
from orchestrator.diagnostics.doctor.ranks import check_ranks
from orchestrator.diagnostics.doctor.slurm import COMMANDS, check_blocks, check_slurm, no_commands
from orchestrator.diagnostics.doctor.storage import check_home, check_ledger, check_mlflow
from orchestrator.diagnostics.preflight.search import require_search
from orchestrator.diagnostics.preflight.work_dir import require_directories
from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import ExternalError, InputError
from search_spaces.rules.check import emulation_remark
from search_spaces.search_space import SearchSpace
from slurm.interface import Slurm, SlurmSettings, SlurmUnreachable
from slurm.sandbox.config_files import SANDBOX_CLUSTER_NAME
from trials.ledger.location import home_folder

AREA_LIMIT_S = 150.0
"""Several commands of 30 s each, or an interpreter's first import of torch."""

Check = Callable[[], Iterator[Finding]]


@dataclass(frozen=True)
class DoctorTarget:
    """Target of the checks: a search, or None for this machine in general.

    `kind` is the launcher's, None if not given. `ledger_url` is the one given.
    """

    spec: SearchSpec | None
    kind: str | None
    ledger_url: str | None
    slurm: Slurm
    submits: bool = False

    @property
    def uses_slurm(self) -> bool:
        """True if the ranks are Slurm jobs; without a launcher, True if Slurm's commands are installed."""
        return self.kind.startswith("slurm") if self.kind else self.has_commands

    @cached_property
    def settings(self) -> SlurmSettings | None:
        """Slurm's configuration; None if Slurm does not answer."""
        try:
            return self.slurm.settings()
        except SlurmUnreachable:
            return None

    @property
    def has_commands(self) -> bool:
        return shutil.which(COMMANDS[0]) is not None


def run_checks(target: DoctorTarget, on_area: Callable[[Area], None] = lambda area: None) -> DoctorReport:
    """Run all checks except the probe job; `on_area` is called before each area. Launches and leaves nothing."""
    areas = []
    for area, check in _checks(target, _search_space(target.spec)):
        on_area(area)
        areas.append((area, tuple(findings_with_timeout(area, check))))
    return DoctorReport(tuple(areas))


def findings_with_timeout(area: Area, check: Check, limit_s: float = AREA_LIMIT_S) -> list[Finding]:
    """Findings of a check until it ended, failed or timed out."""
    found: list[Finding] = []

    def work() -> None:
        with _errors_as_findings(str(area), found):
            for finding in check():
                found.append(finding)

    try:
        result_with_timeout(submit_to_thread(work, "doctor"), limit_s, "")
    except TimeoutError as late:
        fix = "check what follows the last finding: a file system or a server that does not respond"
        found = [*found, error("no_answer", f"{area}: {late}", fix)]
    return found


def check_search(spec: SearchSpec) -> Iterator[Finding]:
    """Check the search as a new one would be; folders, software and Slurm have areas of their own."""
    space, cluster = require_search(spec), spec.cluster
    size = f"{cluster.num_nodes} x {cluster.gpus_per_node} {cluster.accelerator.name}"
    yield ok("search_file", f"{spec.name}: {len(space.layouts)} layouts on {size} with launcher {spec.launcher.kind}")
    if (remark := emulation_remark(engines_of_search(spec), cluster.accelerator.name)) is not None:
        yield note("emulated_device", remark, "search on the accelerator that the layout is for")
    if not cluster.speed_is_known:
        words = f"the compute speed of a rank on {cluster.accelerator.name} is unknown"
        yield note("speed", words, "parlay calibrate SEARCH.YAML measures it, for parlay plan and the sampler")
    elif cluster.links_are_assumed:
        words = f"links are those of the default node of {cluster.accelerator.name}"
        yield note("links", words, "parlay calibrate SEARCH.YAML measures this cluster's own")


def _checks(target: DoctorTarget, space: SearchSpace | None) -> Iterator[tuple[Area, Check]]:
    """Yield areas and their checks in display order."""
    spec = target.spec
    if spec is not None:
        yield Area.SEARCH, lambda: check_search(spec)
    yield Area.MACHINE, lambda: check_machine(not target.uses_slurm if spec is None else spec.launcher.ranks_run_here)
    if target.uses_slurm:
        yield Area.SLURM, lambda: check_slurm(target.slurm, os.environ, _poll_interval_s(spec))
        if spec is not None and space is not None:
            yield Area.JOBS, lambda: _check_jobs(target, spec, space)
    elif target.kind is None:
        yield Area.SLURM, lambda: iter([_no_slurm_here()])
    if spec is not None:
        yield Area.FOLDERS, lambda: _check_places(spec, target)
    yield Area.RECORDS, lambda: _check_records(target)
    if spec is not None:
        yield Area.RANKS, lambda: check_ranks(spec, home_folder(), target.submits)


def _search_space(spec: SearchSpec | None) -> SearchSpace | None:
    """Search space of the spec; None if it is invalid, which check_search reports."""
    try:
        return None if spec is None else candidates_of(spec)
    except InputError:
        return None


def _poll_interval_s(spec: SearchSpec | None) -> float | None:
    return None if spec is None else spec.launcher.slurm.poll_interval_s


def _no_slurm_here() -> Finding:
    found = no_commands(list(COMMANDS))
    return note("commands", "there is no Slurm on this machine", found.fix or "")


def _check_jobs(target: DoctorTarget, spec: SearchSpec, space: SearchSpace) -> Iterator[Finding]:
    if target.settings is not None:
        yield from check_blocks(target.slurm, spec.cluster, spec.launcher.slurm.segment)
        yield from check_jobs(target.slurm, spec, space)
    else:
        yield note("jobs", "not checked: Slurm does not answer", "see the findings about Slurm, and try again")


def _check_places(spec: SearchSpec, target: DoctorTarget) -> Iterator[Finding]:
    try:
        require_directories(spec)
    except InputError as refused:
        raise with_locations(refused, spec) from refused
    runs_on_nodes, settings = target.uses_slurm, target.settings if target.uses_slurm else None
    is_sandbox = settings is not None and settings.cluster_name == SANDBOX_CLUSTER_NAME
    yield from check_folder(spec.work_dir, runs_on_nodes, is_sandbox)


def _check_records(target: DoctorTarget) -> Iterator[Finding]:
    """Check home, ledger and MLflow independently of each other."""
    found: list[Finding] = []
    tracking = target.spec.tracking if target.spec else TrackingSection()
    checks: Sequence[Check] = (
        check_home,
        lambda: check_ledger(target.ledger_url),
        lambda: check_mlflow(tracking),
    )
    for check in checks:
        with _errors_as_findings(str(Area.RECORDS), found):
            found.extend(check())
    yield from dict.fromkeys(found)  # a home that cannot be used is refused by all three


@contextmanager
def _errors_as_findings(area: str, found: list[Finding]) -> Iterator[None]:
    """Within this block errors are appended as findings."""
    try:
        yield
    except InputError as refused:
        found.extend(problem_findings(refused.problems))
    except ExternalError as refused:
        found.append(error("refused", str(refused), refused.fix or "see the message"))
    except SlurmUnreachable as unreachable:
        found.append(error("controller", str(unreachable), "try again when scontrol ping answers"))
    except OSError as failed:
        found.append(error("unreadable", f"{area}: {failed}", "make it readable and writable for you"))
