"""Sampler of node metrics during a trial, for MLflow's system metrics.

Standard library only. It has its own thread, since the watchdog must not wait for a driver that does not respond.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trials.files.folders import AttemptFolder, json_line
from trials.measurement.node_metrics import MAX_NODES, NodeSample
from trials.ranks.environment import RankEnvironment
from trials.ranks.nvml import Nvml
from trials.trial import TrialSpec

FIRST_PAUSE_S = 0.05
"""A trial that starts warm may be over within a second."""
SECOND_PAUSE_S = 1.0
PAUSE_S = 5.0
SHARE_OF_AGE = 0.01
"""Pause between samples as a share of the trial's age: a week makes fewer than a thousand lines."""

PROC = Path("/proc")
_MEGABYTE = 1e6
_TOTAL_TICKS = 8  # proc(5): user nice system idle iowait irq softirq steal; guests are counted in user already
_IDLE, _IO_WAIT = 3, 4


def sample_node(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> None:
    """Sample this rank's node until its process ends; only the first rank of a node does."""
    node, place = divmod(env.rank, spec.gpus_per_node)
    if place == 0 and node < MAX_NODES:
        with suppress(RuntimeError):  # the user's limit of threads may be reached
            NodeSampler(folder.system(node, env.restart), has_gpus=spec.accelerator != "cpu").start()


class NodeSampler(threading.Thread):
    """Appends samples of this node to a file. An error ends the sampling and nothing else."""

    def __init__(self, path: Path, has_gpus: bool, proc: Path = PROC):
        super().__init__(name="node sampler", daemon=True)
        self._path = path
        self._proc = proc
        self._has_gpus = has_gpus

    def run(self) -> None:
        try:
            self._sample()
        except Exception:  # metrics are optional: their failure must not end the trial
            return

    def _sample(self) -> None:
        node = Node(nvml_or_none() if self._has_gpus else None, self._proc)
        began, pause_s = time.monotonic(), FIRST_PAUSE_S
        with self._path.open("ab", buffering=0) as stream:
            while True:
                time.sleep(pause_s)
                stream.write(json_line(NodeSample(time.time(), node.look())))
                pause_s = pause_after(time.monotonic() - began)


def pause_after(age_s: float) -> float:
    """Seconds from a sample to the next one."""
    return SECOND_PAUSE_S if age_s < SECOND_PAUSE_S else max(PAUSE_S, SHARE_OF_AGE * age_s)


def nvml_or_none() -> Nvml | None:
    """This node's GPUs; None where NVIDIA's driver reports none."""
    try:
        return Nvml()
    except (OSError, AttributeError):  # no such library, no device, or one too old to have these functions
        return None


@dataclass(frozen=True)
class _Counters:
    """The kernel's counters since boot, in ticks and in bytes."""

    busy: int
    total: int
    received: int
    sent: int


class Node:
    """This node as shown by /proc and the driver of its GPUs. Used by one thread."""

    def __init__(self, nvml: Nvml | None = None, proc: Path = PROC):
        self._proc = proc
        self._nvml = nvml
        self._first = self._last = self._counters()

    def look(self) -> dict[str, float]:
        """Sample, by MLflow's names, to a tenth. CPU utilization is that since the last sample."""
        now, last = self._counters(), self._last
        self._last = now
        network = {
            "network_receive_megabytes": (now.received - self._first.received) / _MEGABYTE,
            "network_transmit_megabytes": (now.sent - self._first.sent) / _MEGABYTE,
        }
        processors = {}
        if now.total > last.total:
            processors["cpu_utilization_percentage"] = 100 * (now.busy - last.busy) / (now.total - last.total)
        gpus = self._nvml.read() if self._nvml is not None else {}
        return {name: round(value, 1) for name, value in (processors | self._memory() | network | gpus).items()}

    def _memory(self) -> dict[str, float]:
        """Used memory: all but what the kernel considers available."""
        kib = {}
        for line in (self._proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                kib[name] = int(value.split()[0])
        used = kib["MemTotal"] - kib["MemAvailable"]
        return {
            "system_memory_usage_megabytes": used * 1024 / _MEGABYTE,
            "system_memory_usage_percentage": 100 * used / kib["MemTotal"],
        }

    def _counters(self) -> _Counters:
        with (self._proc / "stat").open() as stream:
            ticks = [int(word) for word in stream.readline().split()[1 : 1 + _TOTAL_TICKS]]
        busy = sum(ticks) - ticks[_IDLE] - ticks[_IO_WAIT]
        received, sent = self._network()
        return _Counters(busy, sum(ticks), received, sent)

    def _network(self) -> tuple[int, int]:
        """Bytes received and sent by all interfaces, the loopback among them; proc(5): two lines of headings."""
        lines = (self._proc / "net/dev").read_text().splitlines()[2:]
        columns = [line.rpartition(":")[2].split() for line in lines]
        return sum(int(words[0]) for words in columns), sum(int(words[8]) for words in columns)
