"""Node probe of each rank, gathered on all of them, and the all-reduces of every block of ranks."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import MutableMapping
from pathlib import Path

import torch

from search_spaces.plain_file import read_plain
from trials.diagnostics.calibration import CPU_BUDGET, GPU_BUDGET
from trials.diagnostics.fabric import group_exchanges
from trials.diagnostics.node_probe import MARKS_SEEN_WITHIN_S, NodeProbeReport, RankProbe, marker_path
from trials.files.folders import AttemptFolder, write_text
from trials.fork_server.stub import node_name
from trials.ranks.engine_packages import installed_packages
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.diagnostics.exchanges import ExchangeTimer
from trials.train.diagnostics.stopwatch import Stopwatch
from trials.train.parallel.device import Device, open_device
from trials.train.parallel.gather import barrier, gather_alike
from trials.train.parallel.process_groups import join_world
from trials.trial import TrialSpec


def probe_nodes(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> NodeProbeReport:
    """Probe every rank of the world; the result is the same on all of them."""
    enable_nccl_log(os.environ)
    device = open_device(spec, env.local_rank)
    write_text(marker_path(folder.path, env.rank), spec.nonce)
    join_world(spec, folder, env, device)
    report.enter("measured")
    barrier(device.torch_device)
    device.synchronize()
    mine = rank_probe(env.rank, device, time.time(), missing_marks(folder.path, spec))
    ranks = gather_alike(mine, device.torch_device)
    report.progress()
    budget = CPU_BUDGET if device.is_cpu else GPU_BUDGET
    timer = ExchangeTimer(spec, device, budget, Stopwatch(device, report, budget.seconds))
    groups = [timer.time(exchange).group_time() for exchange in group_exchanges(spec.gpus_per_node, spec.num_nodes)]
    return NodeProbeReport(tuple(ranks), tuple(groups))


def enable_nccl_log(environ: MutableMapping[str, str]) -> None:
    """Make NCCL, and RCCL, log the chosen transports in the rank's log, whatever was set for other runs."""
    environ["NCCL_DEBUG"] = "INFO"
    environ["NCCL_DEBUG_SUBSYS"] = "INIT,ENV,NET"
    environ.pop("NCCL_DEBUG_FILE", None)


def rank_probe(rank: int, device: Device, clock_s: float, unseen: tuple[int, ...]) -> RankProbe:
    """This process's view of its machine."""
    return RankProbe(
        rank=rank,
        node=node_name(),
        host=socket.gethostname(),
        python=platform.python_version(),
        executable=sys.executable,
        torch=str(torch.__version__),
        cuda=torch.version.cuda or torch.version.hip,
        gpus=() if device.is_cpu else tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))),
        gpu=None if device.is_cpu else _identity(device.torch_device),
        cores=tuple(sorted(os.sched_getaffinity(0))),
        clock_s=clock_s,
        unseen=unseen,
        packages=installed_packages(),
    )


def missing_marks(folder: Path, spec: TrialSpec) -> tuple[int, ...]:
    """Ranks whose marks are missing, or another attempt's, after the longest delay of a shared folder."""
    deadline = time.monotonic() + MARKS_SEEN_WITHIN_S
    unseen = tuple(range(spec.num_gpus))
    while (unseen := tuple(rank for rank in unseen if not _is_marked(marker_path(folder, rank), spec.nonce))) and (
        time.monotonic() < deadline
    ):
        os.listdir(folder)  # makes NFS ask its server again
        time.sleep(0.2)
    return unseen


def _is_marked(mark: Path, nonce: str) -> bool:
    try:
        return read_plain(mark) == nonce.encode()
    except (OSError, ValueError):
        return False


def _identity(device: torch.device) -> str:
    """Identity of the device within its node: its UUID, or its bus id where torch knows none."""
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", None) or getattr(properties, "pci_bus_id", None) or device.index)
