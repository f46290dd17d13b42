"""What Slurm is asked for: one batch job whose ranks are one job step. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class JobOptions:
    """What the user may set of a job, by the contract's names under `launcher.slurm`; checked in slurm/options.py.

    None and () leave a directive out. `modules` are loaded, then `setup_file` (a shell file of the user's) is sourced,
    then `env` is exported, in this order. `container` is a command before the ranks' own, for example
    `("apptainer", "exec", "--nv", "image.sif")`. `directives` are raw `--key=value` lines. `exclusive` is whole nodes,
    or sbatch's word for whom they may be shared with (`user`, `mcs`).
    """

    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    gpus_per_node: int | None = None
    gres: str | None = None
    cpus_per_task: int | None = None
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
    container: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobRequest:
    """One job: `num_nodes` x `tasks_per_node` ranks, each running `argv`.

    `name` is how the job is found again, so no two requests share one. `directory` is where job and ranks start;
    job.sh and job.log lie there, and each rank writes `rank-NNNNN.log`. `time_limit_s` is rounded up to the whole
    minutes Slurm knows. `environment` is exported to the ranks after the user's own. `exclude` are nodes to keep away
    from, beside those in `options`.
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

    @property
    def script(self) -> Path:
        """Where the batch script lies; it is written before the job is submitted."""
        return self.directory / "job.sh"

    @property
    def log(self) -> Path:
        """What the batch script itself printed, Slurm's own last words included."""
        return self.directory / "job.log"

    @property
    def time_limit_min(self) -> int:
        """The time limit as Slurm is given it."""
        return limit_min(self.time_limit_s)


def limit_min(time_limit_s: float) -> int:
    """A time limit in whole minutes, at least one: Slurm knows nothing shorter. What is below a millisecond is none."""
    return max(1, -(-int(time_limit_s * 1000) // 60_000))
