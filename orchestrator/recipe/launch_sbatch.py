"""launch.sbatch: the measured program under Slurm, asked for and started as it was measured. Pure: data to text.

How srun starts and binds the ranks is part of how fast a layout is, so the launch line is kept as it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.launchers.base import trial_program
from orchestrator.launchers.factory import job_options
from orchestrator.launchers.local.rank_groups import device_environment
from orchestrator.launchers.schema import LauncherSection
from orchestrator.search.attempt_factory import LAUNCHER_GRACE_S
from search_spaces.hardware.cluster import Cluster
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.validation import restore
from slurm.request import JobOptions, JobRequest
from slurm.script import render_script
from slurm.shell_quoting import Filled
from slurm.srun_command import ADDRESS_VARIABLE
from trials.trial import TrialSpec


@dataclass(frozen=True)
class RecipeJob(JobRequest):
    """A job that is submitted in the recipe's folder, wherever that lies, and makes its own folder in it."""

    @property
    def rank_directory(self) -> str:
        return Filled("$attempt")


def slurm_options(launcher: Mapping[str, Any], spec: TrialSpec) -> JobOptions | None:
    """What the search's jobs asked Slurm for; None where its trials were no jobs. `launcher` is its section."""
    if not str(launcher.get("kind")).startswith("slurm"):
        return None
    cluster = Cluster(accelerator_named(spec.accelerator), spec.gpus_per_node, spec.num_nodes)
    return job_options(restore(LauncherSection, launcher), cluster)


def rank_environment(options: JobOptions | None) -> dict[str, str]:
    """The user's variables, and what a node calls itself: what ranks are told whoever starts them."""
    if options is None:
        return {}
    address = options.launch.address
    return {**options.env, **({} if address is None else {ADDRESS_VARIABLE: address})}


def modules_txt(options: JobOptions) -> str:
    """A module a line, in the order in which they are loaded."""
    return "".join(f"{module}\n" for module in options.modules)


def launch_sbatch(spec: TrialSpec, options: JobOptions, python: str) -> str:
    """The script; `python` is the interpreter it takes unless PARLAY_PYTHON names another."""
    here = Filled("$here")
    job = RecipeJob(
        name=f"{spec.search_id}.{spec.trial}.recipe",
        directory=Path(),
        num_nodes=spec.num_nodes,
        tasks_per_node=-(-spec.num_gpus // spec.num_nodes),
        time_limit_s=spec.measure.time_limit_s + LAUNCHER_GRACE_S,
        argv=(Filled("$python"), "-m", trial_program(spec), Filled("$attempt/spec.json")),
        environment={"PYTHONPATH": Filled("$here/code"), **_OWN_CODE, **device_environment(spec)},
        options=options,
        folders=(here,),
    )
    attempt = "/".join(shlex.quote(part) for part in ("trials", spec.trial, spec.attempt))
    return render_script(job, _FOLDER.format(python=shlex.quote(python), attempt=attempt).splitlines())


_OWN_CODE = {"PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}

_FOLDER = """\
# Trains with the layout in recipe.yaml for as long as it was measured, as it was measured.
# Submit it in its own folder: cd recipe && sbatch launch.sbatch
# PARLAY_PYTHON names the interpreter (default: {python}).
here=$PWD
if [ ! -e "$here/spec.json" ]; then
    echo "launch.sbatch: submit it in its own folder" >&2
    exit 2
fi
python=${{PARLAY_PYTHON:-{python}}}
attempt=$here/run-$SLURM_JOB_ID/{attempt}
mkdir -p -- "$attempt" && cp -- "$here/spec.json" "$attempt/spec.json" && cd -- "$attempt" || exit"""
