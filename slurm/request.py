"""Job requests: one batch job whose ranks are one job step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

SETUP_NAME = "setup.sh"
"""Name of the copy of the user's setup file in the job's folder."""


class Runtime(StrEnum):
    """Container runtimes."""

    PYXIS = "pyxis"
    APPTAINER = "apptainer"
    SHIFTER = "shifter"


class Placement(StrEnum):
    """Placement of a job's nodes: anywhere, below one leaf switch of topology/tree, in one block of topology/block, or
    next to each other in Slurm's order of nodes."""

    ANY = "any"
    ONE_SWITCH = "one_switch"
    ONE_BLOCK = "one_block"
    CONTIGUOUS = "contiguous"


@dataclass(frozen=True)
class Container:
    """The image that the ranks run in, and what they see of the node; checked in option_checks.py.

    `mounts` are `SRC:DST` or `SRC:DST:ro`. `gpus` is the driver that Apptainer binds, `nv` or `rocm`. Without a
    `runtime`, `command` comes before the ranks' own command, for example `("apptainer", "exec", "--nv", "image.sif")`.
    """

    runtime: Runtime | None = None
    image: str | None = None
    mounts: tuple[str, ...] = ()
    writable: bool = False
    gpus: str | None = None
    command: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """Options of starting the ranks by srun, one task per GPU.

    `srun` are options of srun. `visible_devices` is the variable that shows each rank only the GPU of its local number.
    `node_folders` maps variables to paths, below which each step gets a folder of its own on each node. `address` is
    the name by which the other ranks reach the node of rank 0, see trials/ranks/address.py.
    """

    srun: tuple[str, ...] = ()
    visible_devices: str | None = None
    node_folders: Mapping[str, str] = field(default_factory=dict)
    address: str | None = None


@dataclass(frozen=True)
class JobOptions:
    """Job options of the user, by the names under `launcher.slurm`; checked in option_checks.py.

    None and () leave a directive out. In the job, `modules` are loaded, then `setup_file` is sourced (a copy called
    SETUP_NAME in the script's folder), then `env` is exported. `directives` are raw `--key=value` lines. `exclusive` is
    True for whole nodes, or sbatch's word for sharing them (`user`, `mcs`) or whole blocks (`topo`). `segment` is the
    most nodes of a job that lie in one block of topology/block; 0 and None leave the directive out. `dependency` is
    that of the first jobs, `repeat_placement` of jobs that measure again; for one switch they wait `switch_wait_s` at
    most.
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
    segment: int | None = None
    dependency: str | None = None
    repeat_placement: Placement = Placement.ANY
    switch_wait_s: float | None = None
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
    """One job: `num_nodes` x `tasks_per_node` ranks, each running `prefix` and `argv`.

    `name` identifies the job in queries, so it is unique. Job and ranks start in `directory`, which holds job.sh,
    job.log and each rank's `rank-NNNNN.log`. `time_limit_s` is rounded up to whole minutes. `environment` is exported
    to the ranks after the user's own. `exclude` are nodes to avoid in addition to those in `options`. `folders` are the
    folders of the node that ranks in a container need to see. `is_first`: no job of the search has started yet, so that
    it has the options' dependency; `is_repeat`: it measures a layout again, so that it has their placement.
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
    prefix: tuple[str, ...] = ()
    is_first: bool = False
    is_repeat: bool = False

    @property
    def script(self) -> Path:
        """Path of the batch script, written before the job is submitted."""
        return self.directory / "job.sh"

    @property
    def log(self) -> Path:
        """Output of the batch script, with Slurm's own messages."""
        return self.directory / "job.log"

    @property
    def rank_directory(self) -> str:
        """Directory in which the ranks start, as a word of the script."""
        return str(self.directory)

    @property
    def placement(self) -> Placement:
        """Placement of its nodes: the options' for repeats on several nodes."""
        return self.options.repeat_placement if self.is_repeat and self.num_nodes > 1 else Placement.ANY

    @property
    def time_limit_min(self) -> int:
        """Time limit in minutes, as passed to Slurm."""
        return limit_min(self.time_limit_s)


def limit_min(time_limit_s: float) -> int:
    """Return a time limit in whole minutes, rounded up, at least one. Less than a millisecond is ignored."""
    return max(1, -(-int(time_limit_s * 1000) // 60_000))
