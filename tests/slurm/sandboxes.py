"""Fixtures of a real Slurm: one sandbox per session, started by the first test that needs it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm.sandbox.apt_packages import missing_packages
from slurm.sandbox.config_files import Shape
from slurm.sandbox.sandbox import SlurmSandbox

NO_SLURM = "no Slurm installed"

QUICK = (
    # Failures are noticed in seconds: a dead slurmd after 9, a dead controller after 1.
    "MessageTimeout=2",
    "SlurmdTimeout=5",
    # Partitions to be refused by, to time out in and to be preempted in.
    "EnforcePartLimits=ALL",
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "PartitionName=short Nodes=ALL MaxTime=1 State=UP",
    "PartitionName=tiny Nodes=ALL MaxNodes=1 MaxTime=10 State=UP",
    "PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP",
    "PartitionName=lowc Nodes=ALL PriorityTier=1 PreemptMode=CANCEL State=UP",
    "PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP",
    "PartitionName=downp Nodes=ALL State=DOWN",
)


_KILL_TIMEOUT_S = 60.0  # a controller saves its state before it ends, perhaps on a slow disk


class FaultySandbox(SlurmSandbox):
    """A sandbox whose daemons can be hurt one by one."""

    def send_signal(self, daemon: str, number: signal.Signals) -> None:
        """Send a signal to one daemon, for example SIGSTOP."""
        self._daemon(daemon).send_signal(number)

    def kill(self, daemon: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one daemon and wait for its end. Jobs live on under their slurmstepd."""
        self.send_signal(daemon, number)
        assert self._daemon(daemon).wait_for_end(_KILL_TIMEOUT_S), f"{daemon} has not ended after {number.name}"

    def start_daemon(self, daemon: str) -> None:
        """Start one daemon that has ended and wait until it answers."""
        self._start(daemon)
        self._wait_until_ready(daemon)


@pytest.fixture(scope="session")
def slurm_sandbox() -> Iterator[FaultySandbox]:
    """Four nodes of four CPUs and four simulated GPUs, without accounting. Shared: leave all daemons alive and no job
    waiting."""
    with sandbox(accounting=False) as started:
        yield started


@pytest.fixture(scope="session")
def slurm_sandbox_accounting() -> Iterator[FaultySandbox]:
    """The same with slurmdbd, so that sacct answers."""
    with sandbox(accounting=True) as started:
        yield started


@contextmanager
def sandbox(accounting: bool, nodes: int = 4, extra: tuple[str, ...] = QUICK) -> Iterator[FaultySandbox]:
    """A sandbox for one test, removed at the end; skips the test where Slurm is not installed."""
    require_slurm(accounting)
    with short_folder() as folder:
        made = FaultySandbox(folder, Shape(nodes, 4, 4, accounting, extra))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def require_slurm(accounting: bool) -> None:
    missing = missing_packages(accounting)
    if missing:
        pytest.skip(f"{NO_SLURM} (missing: {' '.join(missing)})")


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder with a path short enough for sockets, unlike pytest's own; other users may enter it."""
    folder = Path(tempfile.mkdtemp(prefix="parlay-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def resume(cluster: SlurmSandbox, nodes: str) -> None:
    """Resume drained nodes; they are `idle*` until they respond."""
    cluster.ask("scontrol", "update", f"nodename={nodes}", "state=resume")
    deadline = time.monotonic() + 60.0
    while "*" in (states := cluster.ask("sinfo", "--noheader", "--Node", f"--nodes={nodes}", "--format=%T").stdout):
        assert time.monotonic() < deadline, states
        time.sleep(0.1)
