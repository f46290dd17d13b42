"""What Slurm is asked for: one batch job whose ranks are one job step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SETUP_NAME = "setup.sh"
"""What the user's setup file is called beside the job's script."""


class Runtime(StrEnum):
    """What starts containers."""

    PYXIS = "pyxis"
    APPTAINER = "apptainer"
    SHIFTER = "shifter"


@dataclass(frozen=True)
class Container:
    """The image that the ranks run in, and what of the node they see there; checked in option_checks.py.

    `mounts` are `SRC:DST` or `SRC:DST:ro`. `gpus` is which driver Apptainer brings in, `nv` or `rocm`. Without a
    `runtime` it is `command` before the ranks' own command, for example `("apptainer", "exec", "--nv", "image.sif")`.
    """

    runtime: Runtime | None = None
    image: str | None = None
    mounts: tuple[str, ...] = ()
    writable: bool = False
    gpus: str | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """How srun starts the ranks, one task for each GPU.

    `srun` are options of srun. `visible_devices` is the variable that shows each rank the GPU of its own number on the
    node, and no other. `node_folders` are variables that name a folder of the step's own on each node, below these
    paths. `address` is what the node of rank 0 calls itself where the ranks meet, see trials/ranks/address.py.
    """

    srun: tuple[str, ...] = ()
    visible_devices: str | None = None
    node_folders: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None


@dataclass(frozen=True)
class JobOptions:
    """What the user may set of a job, by the contract's names under `launcher.slurm`; checked in option_checks.py.

    None and () leave a directive out. `modules` are loaded, then `setup_file` (a shell file of the user's, of which a
    copy called SETUP_NAME lies beside the script) is sourced, then `env` is exported, in this order. `directives` are
    raw `--key=value` lines. `exclusive` is whole nodes, or sbatch's word for whom they may be shared with (`user`,
    `mcs`).
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gpus_per_node: int | None = None
    gres: str | None = None
    cpus_per_task: int | None = None
    threads_per_core: int | None = None
    mem: str | None = None
    exclusive: bool | str = False
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()
    network: str | None = None
    licenses: str | None = None
    comment: str | None = None
    signal: str | None = None
    modules: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    setup_file: str | None = None
    container: Container | None = None
    launch: Launch = Launch()
    directives: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobRequest:
    """One job: `num_nodes` x `tasks_per_node` ranks, each running `argv`.

    `name` is how the job is found again, so no two requests share one. `directory` is where job and ranks start;
    job.sh and job.log lie there, and each rank writes `rank-NNNNN.log`. `time_limit_s` is rounded up to the whole
    minutes Slurm knows. `environment` is exported to the ranks after the user's own. `exclude` are nodes to keep away
    from, beside those in `options`. `folders` are what the ranks have to see of the node besides, where they run in a
    container.
    """

    name: str
    directory: Path
    num_nodes: int
    tasks_per_node: int
    time_limit_s: float
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    options: JobOptions = JobOptions()
    exclude: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()

    @property
    def script(self) -> Path:
        """Where the batch script lies; it is written before the job is submitted."""
        return self.directory / "job.sh"

    @property
    def log(self) -> Path:
        """What the batch script itself printed, Slurm's own last words included."""
        return self.directory / "job.log"

    @property
    def rank_directory(self) -> str:
        """Where the ranks start, as a word of the script."""
        return str(self.directory)

    @property
    def time_limit_min(self) -> int:
        """The time limit as Slurm is given it."""
        return limit_min(self.time_limit_s)


def limit_min(time_limit_s: float) -> int:
    """A time limit in whole minutes, at least one: Slurm knows nothing shorter. What is below a millisecond is none."""
    return max(1, -(-int(time_limit_s * 1000) // 60_000))
