"""Dry run: writes the first jobs of a search as files, to read and to check with `sbatch --test-only`.

Nothing is submitted, and no search is created.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.schema.setup_file import SetupFile
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.factory import job_options
from orchestrator.launchers.slurm.job_files import job_request, write_job_files
from orchestrator.lifecycle.observers import attempt_factory_of
from orchestrator.planning.plan import plan_of
from orchestrator.planning.prior_trials import NO_PRIOR_TRIALS, PriorTrials, collect_prior_trials_for_plan
from orchestrator.search.attempt_factory import next_attempt
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.search_space import SearchSpace
from trials.files.folders import SearchFolder
from trials.trial import Trial

_NO_NONCE = "0" * 32


class DryRunScript(AnswerPart):
    """A job script that a dry run has written, of the baseline or of the plan's first layout. It is submitted from its
    folder."""

    what: str
    layout_key: str
    script: str


class DryRunAnswer(Answer):
    """Printed by run --dry-run and submit --dry-run."""

    schema_: Literal["parlay.dry_run/1"] = "parlay.dry_run/1"
    num_layouts: int
    max_trials: int
    spec: Mapping[str, Any]
    """Content of search.json."""
    setup_file: SetupFile | None
    scripts: list[DryRunScript]
    """With --scripts."""


class DryRunManyAnswer(Answer):
    """Printed by submit --dry-run with several search files."""

    schema_: Literal["parlay.dry_run_many/1"] = "parlay.dry_run_many/1"
    searches: list[DryRunAnswer]


def dry_run_of(spec: SearchSpec, space: SearchSpace, scripts: Path | None) -> tuple[DryRunAnswer, str]:
    """What a valid search would try, as an answer and as text; its first jobs are written to the folder `scripts`."""
    jobs = [] if scripts is None else write_first_jobs(spec, space, scripts)
    num_layouts, setup = len(space.layouts), SetupFile.of(spec.launcher)
    trials, ranks = min(spec.search.max_trials, num_layouts), int(space.layouts.num_gpus.max())
    lines = [
        f"valid: up to {trials} of {num_layouts} layouts would be tried on {ranks} ranks"
        f" with launcher {spec.launcher.kind}; nothing was launched or written",
        *(f"{job.what}, {job.layout_key}: {job.script}" for job in jobs),
        *(["check one with Slurm: sbatch --test-only SCRIPT"] if jobs else ()),
        *(setup.lines() if setup else ()),
    ]
    answer = DryRunAnswer(
        num_layouts=num_layouts, max_trials=trials, spec=spec.to_json(), setup_file=setup, scripts=jobs
    )
    return answer, "\n".join(lines)


def write_first_jobs(spec: SearchSpec, space: SearchSpace, place: Path) -> list[DryRunScript]:
    """Write the attempt folders of the layouts that are tried first, below NAME-dry-run in `place`.

    They hold the same files as in a search, without the code that these name. InputError where trials are not jobs of
    their own, or nothing can be written.
    """
    _require_jobs(spec)
    layouts = first_layouts(spec, space, collect_prior_trials_for_plan(spec))
    folder = SearchFolder(place.absolute() / f"{spec.name}-dry-run")
    try:
        folder.path.mkdir(parents=True, mode=0o700)
        return [
            DryRunScript(
                what=what, layout_key=layout.key, script=str(_write_job(spec, folder, f"t{number:04d}", layout))
            )
            for number, (what, layout) in enumerate(layouts.items(), start=1)
        ]
    except OSError as error:
        message, fix = f"{folder.path}: {error.strerror or error}", "name a folder without it"
        raise InputError.of("output", message, fix=fix, key="--scripts", value=str(place)) from error


def first_layouts(
    spec: SearchSpec, space: SearchSpace, prior_trials: PriorTrials = NO_PRIOR_TRIALS
) -> Mapping[str, Layout]:
    """The baseline, if any, and the layout that is predicted to be the fastest after these prior trials."""
    first = plan_of(spec, space, prior_trials).layouts[0]
    if space.baseline is None:
        return {"first": first}
    return {"baseline": space.baseline} | ({} if first == space.baseline else {"first": first})


def _write_job(spec: SearchSpec, folder: SearchFolder, trial: str, layout: Layout) -> Path:
    program = attempt_factory_of(folder, spec)
    proposed = Trial(trial, layout)
    request = program.request(proposed, next_attempt(proposed, _NO_NONCE, program.time_limit_s))
    request.folder.write_spec(folder.path, request.spec.to_json())
    job = job_request(request, job_options(spec.launcher, spec.cluster))
    write_job_files(job)
    return job.script


def _require_jobs(spec: SearchSpec) -> None:
    if spec.launcher.kind != "slurm":
        raise InputError.of(
            "usage",
            f"is given, and the launcher is {spec.launcher.kind}",
            rule="scripts are written for the launcher whose trials are Slurm jobs of their own",
            fix="add --launcher slurm",
            key="--scripts",
        )
