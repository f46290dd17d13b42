"""`parlay run`: a search, driven in this process."""

from __future__ import annotations

from orchestrator.cli.drive import DriverKind, create_search, drive_here, validate_file
from orchestrator.cli.dry_run import DryRunOptions, print_dry_run
from orchestrator.cli.options import (
    Against,
    AgainstLayouts,
    AsJson,
    DryRun,
    ExecutorName,
    LauncherKind,
    LedgerUrl,
    Overrides,
    SamplerName,
    Scripts,
    SearchFilePath,
    WorkDir,
    against_overrides,
    to_overrides,
)
from orchestrator.cli.output import log
from orchestrator.cli.ray_driver import drive_in_ray, wants_ray


def run(
    search_file: SearchFilePath,
    sets: Overrides = None,
    launcher: LauncherKind = None,
    sampler: SamplerName = None,
    work_dir: WorkDir = None,
    ledger: LedgerUrl = None,
    against: Against = None,
    layouts: AgainstLayouts = None,
    executor: ExecutorName = "thread",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search in the foreground: trials run until the best layout is known or a limit is reached."""
    changes = to_overrides(sets, launcher, sampler, work_dir, ledger) + against_overrides(against, layouts)
    drive = drive_in_ray if wants_ray(executor) else drive_here
    wanted = DryRunOptions(dry_run, scripts)
    search = validate_file(search_file, changes, DriverKind.PROCESS)
    if wanted.enabled:
        print_dry_run(search.spec, search.space, wanted.scripts, as_json)
        return
    started = create_search(search, changes)
    log(f"search {started.folder.search_id} in {started.folder.path}")
    drive(started, as_json)
