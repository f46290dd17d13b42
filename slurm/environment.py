"""Environment of Slurm's commands, and the sbatch options in the user's own environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from slurm.request import JobOptions

RANK_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
"""Variables that identify a rank: left over from another launcher, they would give all ranks the same identity."""

PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
"""Variables for the Python that runs Parlay, which ranks do not inherit."""

LAUNCHER_PREFIXES = (
    *("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_"),
    *("PMI", "OMPI_", "MPI_", "TORCHELASTIC_"),
)
"""Beginnings of the variables of other launchers and of Slurm's commands."""

_CLUSTER_NAMES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
_CLUSTER_ACCESS = (*_CLUSTER_NAMES, "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Variables to keep: without them the commands would query another cluster, or be refused.

SLURM_CLUSTERS is read by every command, SBATCH_CLUSTERS by sbatch alone, whose jobs squeue would then not see.
"""

_OUTPUT_FORMAT = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}

_OPTION_VARIABLES = {f.name: f.metadata["variables"] for f in fields(JobOptions) if "variables" in f.metadata}

_VALUE_IS_OPTIONAL = "SBATCH_EXCLUSIVE"
"""Options with an optional value: sbatch reads an empty one as whole nodes."""


@dataclass(frozen=True)
class InheritedOption:
    """An option that a variable of the environment would have set for sbatch, as written there."""

    variable: str
    value: str


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for sbatch, which the job inherits: the user's own without other jobs' and launchers'
    variables.

    SBATCH_* would override the script's directives, SLURM_* would hand on the shape of the driver's own job, and the
    others would mislead the ranks.
    """
    return {name: value for name, value in environ.items() if name in _CLUSTER_ACCESS or not _is_foreign(name)}


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for all other commands: as for sbatch, with times in UTC, in one format, in English."""
    return {**submission_environment(environ), **_OUTPUT_FORMAT}


def inherited_options(environ: Mapping[str, str]) -> dict[str, InheritedOption]:
    """Return the sbatch options set in the user's environment, by the names of JobOptions and as written there.

    They have no effect by themselves (see `submission_environment`): the caller shows them and puts them into the
    script. GPUs of a type (`SBATCH_GPUS_PER_NODE=v100:2`) are given as generic resources.
    """
    found: dict[str, InheritedOption] = {}
    for option, names in _OPTION_VARIABLES.items():
        for variable in names:
            value = environ.get(variable)
            if value or (value is not None and variable == _VALUE_IS_OPTIONAL):
                found.setdefault(option, InheritedOption(variable, value))
    if "gpus_per_node" in found and ":" in found["gpus_per_node"].value:
        found["gres"] = _with_gpus(found.get("gres"), found.pop("gpus_per_node"))
    return found


def _with_gpus(gres: InheritedOption | None, gpus: InheritedOption) -> InheritedOption:
    """Add `v100:2,a100:1` to the generic resources asked for."""
    requested = InheritedOption(gpus.variable, ",".join(f"gpu:{kind}" for kind in gpus.value.split(",")))
    if gres is None:
        return requested
    return InheritedOption(f"{gres.variable} and {requested.variable}", f"{gres.value},{requested.value}")


def cluster_key(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values that distinguish the clusters reachable from one machine."""
    return tuple(cluster_variables(environ).get(name, "") for name in _CLUSTER_NAMES)


def cluster_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables that select the cluster; empty for the machine's default."""
    return {name: environ[name] for name in _CLUSTER_NAMES if environ.get(name)}


def _is_foreign(name: str) -> bool:
    return name in RANK_NAMES or name.startswith(LAUNCHER_PREFIXES)
