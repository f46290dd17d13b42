"""`parlay run`: a search, driven in this process."""

from __future__ import annotations

from contextlib import ExitStack

from orchestrator.cli.drive import drive_here
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
    naming_options,
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
    executor: ExecutorName = "process",
    dry_run: DryRun = False,
    scripts: Scripts = None,
    as_json: AsJson = False,
) -> None:
    """Search in the foreground: trials run until the best layout is known or a limit is reached."""
    from orchestrator.cli.upper_limit import describe_upper_limit
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle.create import create_search, validate_search

    changes = to_overrides(sets, launcher, sampler, work_dir, ledger) + against_overrides(against, layouts)
    in_ray, wanted = wants_ray(executor), DryRunOptions(dry_run, scripts)
    with ExitStack() as held:
        with naming_options(changes):
            search = validate_search(load_search_file(search_file, [change.text for change in changes]))
            if wanted.enabled:
                print_dry_run(search.spec, search.space, wanted.scripts, as_json)
                return
            log(describe_upper_limit(search.spec, search.space))
            started = held.enter_context(create_search(search))
        log(f"search {started.folder.search_id} in {started.folder.path}")
        if in_ray:
            held.close()  # for the driver in Ray
            drive_in_ray(started, as_json)
        else:
            drive_here(started, as_json)
