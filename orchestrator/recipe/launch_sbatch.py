"""launch.sbatch: starts the measured program as a Slurm job with the measured options. Pure: data to text.

The srun line is the measured one, since launching and CPU binding affect throughput.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.base import trial_program
from orchestrator.launchers.factory import job_options
from orchestrator.launchers.local.rank_groups import device_environment
from orchestrator.launchers.slurm.job_files import with_launch
from orchestrator.recipe.render import NO_CACHES, OWN_CODE
from orchestrator.search.node_hours import LAUNCHER_GRACE_S
from search_spaces.decoding import decode
from search_spaces.hardware.cluster import Cluster
from search_spaces.hardware.links import Links
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.validation import restore
from slurm.request import JobOptions, JobRequest
from slurm.script import render_script
from slurm.srun_command import ADDRESS_VARIABLE, Filled
from trials.trial import TrialSpec


@dataclass(frozen=True)
class RecipeJob(JobRequest):
    """A job that is submitted from the recipe's folder and creates its run folder in it."""

    @property
    def rank_directory(self) -> str:
        return Filled("$attempt")


def slurm_options(search: Mapping[str, Any], spec: TrialSpec) -> JobOptions | None:
    """Slurm options of the search's jobs; None if its trials were not jobs. `search` is its record, search.json."""
    launcher, links = search.get("launcher") or {}, (search.get("cluster") or {}).get("links")
    if not str(launcher.get("kind")).startswith("slurm"):
        return None
    given = None if links is None else decode(Links, links)
    cluster = Cluster(accelerator_named(spec.accelerator), spec.gpus_per_node, spec.num_nodes, given)
    return job_options(restore(LauncherSection, launcher), cluster)


def user_environment(options: JobOptions | None) -> dict[str, str]:
    """Environment variables of the ranks under any launcher: the user's, and the address option."""
    if options is None:
        return {}
    address = options.launch.address
    return {**options.env, **({} if address is None else {ADDRESS_VARIABLE: address})}


def launch_sbatch(spec: TrialSpec, options: JobOptions, python: str) -> str:
    """Content of launch.sbatch; `python` is the default interpreter, which PARLAY_PYTHON overrides."""
    here, settings = Filled("$here"), spec.layout.of_trial
    job = RecipeJob(
        name=f"{spec.search_id}.{spec.trial}.recipe",
        directory=Path(),
        num_nodes=spec.num_nodes,
        tasks_per_node=-(-spec.num_gpus // spec.num_nodes),
        time_limit_s=spec.measure.time_limit_s + LAUNCHER_GRACE_S,
        argv=(Filled("$python"), "-m", trial_program(spec), Filled("$attempt/spec.json")),
        environment={"PYTHONPATH": Filled("$here/code"), **OWN_CODE, **device_environment(spec)},
        options=with_launch(options, settings),
        folders=(here,),
        prefix=settings.prefix,
    )
    attempt = "/".join(shlex.quote(part) for part in ("trials", spec.trial, spec.attempt))
    no_caches = NO_CACHES.format(script="launch.sbatch")
    before = _FOLDER.format(no_caches=no_caches, python=shlex.quote(python), attempt=attempt)
    return render_script(job, before.splitlines())


_FOLDER = """\
# Trains with the layout in recipe.yaml for as many steps as a measurement takes, with the measured options.
# Submit it in its own folder: cd recipe && sbatch launch.sbatch
# PARLAY_PYTHON names the interpreter (default: {python}).
here=$PWD
if [ ! -e "$here/spec.json" ]; then
    echo "launch.sbatch: submit it in its own folder" >&2
    exit 2
fi
{no_caches}
python=${{PARLAY_PYTHON:-{python}}}
attempt=$here/run-$SLURM_JOB_ID/{attempt}
mkdir -p -- "$attempt" && cp -- "$here/spec.json" "$attempt/spec.json" && cd -- "$attempt" || exit"""
