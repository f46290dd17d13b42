"""The environment that Slurm's commands run in, and what the user's own asked of sbatch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RANK_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
)
"""What tells a rank who it is: left over from another launcher, all ranks would take themselves for the same one."""

_FOREIGN_PREFIXES = (
    *("SLURM", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_"),
    *("PMI", "OMPI_", "MPI_", "TORCHELASTIC_"),
)

_NAME_THE_CLUSTER = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
_FINDS_THE_CLUSTER = (*_NAME_THE_CLUSTER, "SLURM_JWT", "SLURM_SACK_SOCKET")
"""Kept: without them the commands would ask another cluster than the user's own do, or would not be let in.

SLURM_CLUSTERS is read by every command alike; SBATCH_CLUSTERS by sbatch alone, whose jobs squeue would then not see.
"""

_SAME_WORDS_EVERYWHERE = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}

_CARRIED = {
    "account": ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
    "partition": ("SBATCH_PARTITION",),
    "qos": ("SBATCH_QOS",),
    "reservation": ("SBATCH_RESERVATION",),
    "constraint": ("SBATCH_CONSTRAINT",),
    "gpus_per_node": ("SBATCH_GPUS_PER_NODE",),
    "gres": ("SBATCH_GRES",),
    "mem": ("SBATCH_MEM_PER_NODE",),
    "exclusive": ("SBATCH_EXCLUSIVE",),
    "network": ("SBATCH_NETWORK",),
    "signal": ("SBATCH_SIGNAL",),
}
"""Our options and the variables that sbatch reads for them (sbatch(1), "INPUT ENVIRONMENT VARIABLES"), first one first.

SLURM_ACCOUNT is no input of sbatch's, but what many sites and login scripts set; Slurm itself sets SLURM_JOB_ACCOUNT.
"""

_MEANT_BY_BEING_SET = "SBATCH_EXCLUSIVE"
"""Takes a word or none, so sbatch takes the empty one for whole nodes."""


@dataclass(frozen=True)
class InheritedOption:
    """What a variable of the environment would have asked of sbatch, in the words of an option of ours."""

    variable: str
    value: str


def submission_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for sbatch, which the job inherits: the user's own without other jobs' and launchers'.

    SBATCH_* variables go because they override what stands in the script, SLURM_* because a driver that itself runs
    in a job would hand on that job's shape, the others because trial ranks would believe them.
    """
    return {name: value for name, value in environ.items() if name in _FINDS_THE_CLUSTER or not _is_foreign(name)}


def query_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for all other commands: as above, and they print times in UTC, in one form, in English."""
    return {**submission_environment(environ), **_SAME_WORDS_EVERYWHERE}


def inherited_options(environ: Mapping[str, str]) -> dict[str, InheritedOption]:
    """What the user's own environment would have asked of sbatch, by the names of JobOptions and as written there.

    It takes no effect by itself (see `submission_environment`): the caller shows it and puts it into the script.
    GPUs of a kind (`SBATCH_GPUS_PER_NODE=v100:2`) are generic resources, which say the same.
    """
    found: dict[str, InheritedOption] = {}
    for option, names in _CARRIED.items():
        for variable in names:
            value = environ.get(variable)
            if value or (value is not None and variable == _MEANT_BY_BEING_SET):
                found.setdefault(option, InheritedOption(variable, value))
    if "gpus_per_node" in found and ":" in found["gpus_per_node"].value:
        found["gres"] = _with_gpus(found.get("gres"), found.pop("gpus_per_node"))
    return found


def _with_gpus(gres: InheritedOption | None, gpus: InheritedOption) -> InheritedOption:
    """`v100:2,a100:1` as generic resources, beside those that are asked for anyhow."""
    asked = InheritedOption(gpus.variable, ",".join(f"gpu:{kind}" for kind in gpus.value.split(",")))
    if gres is None:
        return asked
    return InheritedOption(f"{gres.variable} and {asked.variable}", f"{gres.value},{asked.value}")


def cluster_key(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What tells two clusters apart that may be asked from one machine."""
    return tuple(cluster_variables(environ).get(name, "") for name in _NAME_THE_CLUSTER)


def cluster_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Those variables that say which cluster is asked; none where it is the machine's own."""
    return {name: environ[name] for name in _NAME_THE_CLUSTER if environ.get(name)}


def _is_foreign(name: str) -> bool:
    return name in RANK_NAMES or name.startswith(_FOREIGN_PREFIXES)
