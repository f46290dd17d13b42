"""Times of every exchange of a fabric check, gathered on all ranks."""

from __future__ import annotations

from dataclasses import replace

from trials.diagnostics.calibration import CPU_BUDGET, GPU_BUDGET
from trials.diagnostics.fabric import FabricTimes, exchanges_of, shapes_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.calibrate.exchanges import ExchangeTimer
from trials.train.calibrate.stopwatch import Stopwatch
from trials.train.parallel.device import open_device
from trials.train.parallel.process_groups import join_world
from trials.train.proof.fingerprint import fingerprint
from trials.train.proof.layout_check import locate_ranks
from trials.trial import TrialSpec

SECONDS = 0.4
"""Time of one exchange: less than calibrate takes, since there are more of them."""


def check_fabric(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> FabricTimes:
    """Time all exchanges on every rank of the world; the result is the same on all of them."""
    device = open_device(spec, env.local_rank)
    join_world(spec, folder, env, device)
    hosts = locate_ranks(spec, device)
    report.enter("measured")
    nodes = [rank.host for rank in hosts]
    budget = replace(CPU_BUDGET if device.is_cpu else GPU_BUDGET, seconds=SECONDS)
    timer = ExchangeTimer(spec, device, budget, Stopwatch(device, report, budget.seconds))
    exchanges = exchanges_of(shapes_of(spec.trainer), spec.gpus_per_node, spec.num_nodes)
    return FabricTimes(tuple(nodes), tuple(map(timer.time, exchanges)), fingerprint(spec, device, hosts))
