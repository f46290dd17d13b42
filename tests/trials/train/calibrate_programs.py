"""Programs of the forked ranks in calibrate's tests: all benchmarks, with tiny sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.diagnostics.calibration import BenchmarkBudget, trainer_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.calibrate import benchmarks

TINY = BenchmarkBudget((16, 32), 2**20, 2**16, 2**14, seconds=0.005)


def measure(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """This rank's result on these numbers of nodes and ranks per node."""
    benchmarks.CPU_BUDGET = TINY
    layout = Layout(num_nodes=arguments["num_nodes"], data_parallel=arguments["num_nodes"] * arguments["gpus_per_node"])
    spec = make_spec(layout, gpus_per_node=arguments["gpus_per_node"], trainer=trainer_of(["fp32", "bf16"]))
    env = RankEnvironment.read(os.environ)
    report = Report(spec, AttemptFolder(folder), env.rank, env.restart, started_at=0.0)
    return benchmarks.measure(spec, AttemptFolder(folder), env, report).to_json() | {"ended_at": None}
