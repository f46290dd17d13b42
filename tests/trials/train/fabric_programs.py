"""Programs of the forked ranks in the fabric check's tests."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.trials.train.calibrate_programs import TINY
from tests.trials.train.trial_processes import make_spec
from trials.diagnostics.fabric import shapes_of, trainer_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.calibrate.exchanges import Exchanges, Work
from trials.train.fabric import check


def check_fabric(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """This rank's result on these numbers of nodes and ranks per node; the ranks of node `slow` take `delay_s` more
    for every exchange, and node n is called `n<n>`."""
    env = RankEnvironment.read(os.environ)
    gpus_per_node, num_nodes = arguments["gpus_per_node"], arguments["num_nodes"]
    os.environ["SLURMD_NODENAME"] = f"n{env.rank // gpus_per_node}"
    check.CPU_BUDGET, check.SECONDS = TINY, TINY.seconds
    if env.rank // gpus_per_node == arguments.get("slow"):
        _delay_exchanges(arguments["delay_s"])
    spec = make_spec(
        Layout(num_nodes=num_nodes, data_parallel=num_nodes * gpus_per_node),
        gpus_per_node=gpus_per_node,
        trainer=trainer_of(shapes_of(arguments)),
    )
    report = Report(spec, AttemptFolder(folder), env.rank, env.restart, started_at=0.0)
    return check.check_fabric(spec, AttemptFolder(folder), env, report).to_json()


def _delay_exchanges(delay_s: float) -> None:
    work_of = Exchanges.work

    def delayed(self: Exchanges, *arguments: Any) -> Work:
        work = work_of(self, *arguments)
        return None if work is None else partial(_after, delay_s, work)

    Exchanges.work = delayed  # type: ignore[method-assign]


def _after(delay_s: float, work: Any) -> object:
    time.sleep(delay_s)
    return work()
