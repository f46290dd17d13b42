"""This rank's place in the world, and its process's settings before torch is imported. Imports no torch."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from trials.ranks.allocator import map_large_buffers
from trials.ranks.cuda_connections import connections
from trials.trial import TrialSpec

PARENT_VARIABLE = "PARLAY_PARENT_PID"
"""Environment variable: set by a launcher whose ranks must not outlive it."""
WARM_VARIABLE = "PARLAY_WARM"
"""Environment variable: set in a rank that was forked by a fork server, after its imports."""
LAUNCHED_VARIABLE = "PARLAY_LAUNCHED_TICKS"
"""Environment variable: start of the process that stands for a forked rank, in clock ticks since boot."""


@dataclass(frozen=True)
class RankEnvironment:
    """This process's rank, as its launcher set it; `restart` counts Slurm's requeues.

    `ranks_on_node` is None where srun started the rank.
    """

    rank: int
    world_size: int
    local_rank: int
    restart: int = 0
    parent_pid: int | None = None
    ranks_on_node: int | None = None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> RankEnvironment:
        """Read RANK, WORLD_SIZE, LOCAL_RANK, else Slurm's own variables; ValueError where neither is complete."""
        parent, on_node = environ.get(PARENT_VARIABLE), environ.get("LOCAL_WORLD_SIZE")
        return cls(
            rank=_number(environ, "RANK", "SLURM_PROCID"),
            world_size=_number(environ, "WORLD_SIZE", "SLURM_NTASKS"),
            local_rank=_number(environ, "LOCAL_RANK", "SLURM_LOCALID"),
            restart=int(environ.get("SLURM_RESTART_COUNT") or 0),
            parent_pid=int(parent) if parent else None,
            ranks_on_node=int(on_node) if on_node else None,
        )

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Set the variables that DeepSpeed requires."""
        environ["RANK"] = str(self.rank)
        environ["WORLD_SIZE"] = str(self.world_size)
        environ["LOCAL_RANK"] = str(self.local_rank)


_SHOWN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def device_number(local_rank: int, environ: Mapping[str, str]) -> int:
    """Index of a rank's device among its visible ones.

    Some sites show each rank only its own device; its index is then 0, whatever the rank's number on its node.
    """
    shown = [len(environ[name].split(",")) for name in _SHOWN if environ.get(name)]
    return local_rank % min(shown) if shown else local_rank


def _number(environ: Mapping[str, str], name: str, slurm_name: str) -> int:
    text = environ.get(name) or environ.get(slurm_name)
    if text is None:
        raise ValueError(f"neither {name} nor {slurm_name} is set: the ranks must be started by a launcher")
    return int(text)


def prepare_process(spec: TrialSpec, environ: MutableMapping[str, str]) -> None:
    """Apply settings of this trial that only count before torch and an engine are used."""
    prepare_imports(spec.layout.engine, on_cpu=spec.accelerator == "cpu", environ=environ)
    if spec.num_nodes == 1 and "GLOO_SOCKET_IFNAME" not in spec.layout.of_trial.env:
        environ["GLOO_SOCKET_IFNAME"] = "lo"
    if spec.layout.engine == MEGATRON_CORE and spec.accelerator != "cpu":  # read when the device is first used
        for name, value in connections(spec.layout, spec.accelerator).items():
            environ.setdefault(name, value)
    if compiles(spec) and "TORCHINDUCTOR_CACHE_DIR" not in environ:
        environ["TORCHINDUCTOR_CACHE_DIR"] = str(compile_cache_folder(Path(tempfile.gettempdir())))


def compiles(spec: TrialSpec) -> bool:
    """True where torch's compiler runs: with `torch_compile`, and on a GPU for megatron-core's fused functions
    (megatron/core/jit.py) and torchtitan's attention (torchtitan/models/common/attention.py)."""
    compiles_parts = spec.layout.engine in (MEGATRON_CORE, TORCHTITAN) and spec.accelerator != "cpu"
    return spec.layout.torch_compile or compiles_parts


def prepare_imports(engine: str, on_cpu: bool, environ: MutableMapping[str, str]) -> None:
    """Apply settings that only count before torch and an engine are imported."""
    if on_cpu:
        # Ranks share the cores, so each gets one thread.
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ["DS_ACCELERATOR"] = "cpu"
        map_large_buffers()
        if engine in (MEGATRON_CORE, TORCHTITAN):
            # They have torch compile functions of theirs, for minutes and with a C++ compiler, which is no faster here.
            environ["TORCHDYNAMO_DISABLE"] = "1"
    if engine == MEGATRON_CORE:
        # megatron-core sets them itself, by the layout's attention kernel, and refuses other values.
        for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
            environ.pop(name, None)
    if engine == TORCHTITAN:
        # Its data sets bring pyarrow, whose allocator else starts a thread, which keeps a process from being forked.
        environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    if engine == ACCELERATE:
        # Settings for `accelerate launch`, which would be taken where the layout's configuration says nothing.
        for name in [name for name in environ if name.startswith(_OF_ACCELERATE)]:
            del environ[name]
    if engine == "deepspeed":
        # DeepSpeed's autotuner imports mlflow where installed: a second and 110 MB a rank without use, and with it
        # pyarrow, whose allocator starts a thread that keeps a process from being forked.
        sys.modules["mlflow"] = None  # type: ignore[assignment]


_OF_ACCELERATE = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")


_TOPOLOGY = Path("/sys/devices/system/cpu")


def bind_to_cores(spec: TrialSpec, env: RankEnvironment) -> None:
    """Give this process, and what it starts, its rank's cores where the trial's launch options ask for that; srun binds
    the ranks that it starts itself."""
    if env.ranks_on_node is not None and spec.layout.of_trial.launch.get("cpu_bind") == "cores":
        os.sched_setaffinity(0, own_cpus(os.sched_getaffinity(0), env.local_rank, env.ranks_on_node))


def own_cpus(usable: set[int], local_rank: int, ranks_on_node: int, topology: Path = _TOPOLOGY) -> list[int]:
    """CPUs of a rank's share of these: whole cores, neighbours together. With fewer cores than ranks, ranks share a
    core."""
    cores: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(usable):
        cores.setdefault(_core_of(cpu, topology), []).append(cpu)
    ordered = [cores[core] for core in sorted(cores)]
    first, end = (len(ordered) * (local_rank + n) // ranks_on_node for n in (0, 1))
    return [cpu for core in ordered[first : max(end, first + 1)] for cpu in core]


def _core_of(cpu: int, topology: Path) -> tuple[int, ...]:
    """Package and core of a CPU, which the hardware threads of one core share; the CPU itself where unknown."""
    names = ("physical_package_id", "core_id")
    with suppress(OSError, ValueError):
        package, core = (int((topology / f"cpu{cpu}" / "topology" / name).read_text()) for name in names)
        return package, core
    return 0, cpu


def compile_cache_folder(temporary: Path) -> Path:
    """Folder (0700) for torch.compile's cache, from which it reads pickles.

    By default torch takes a folder whose name anybody could create first.
    """
    folder = temporary / f"parlay-torchinductor-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if is_own else Path(tempfile.mkdtemp(prefix="parlay-torchinductor-", dir=temporary))


def process_age_s() -> float:
    """Seconds since this process was started, Python's own start included; of a forked rank since its launch."""
    ticks = os.environ.get(LAUNCHED_VARIABLE)
    if ticks is None:
        # proc(5): field 22 is the start in clock ticks since boot; the command in field 2 may hold spaces.
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")


def started_warm(environ: Mapping[str, str]) -> bool:
    """True for a rank that a fork server forked after its imports."""
    return WARM_VARIABLE in environ
