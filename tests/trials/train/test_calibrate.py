"""All benchmarks of a calibration and all exchanges of a fabric check on real ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.diagnostics import calibration, fabric
from trials.diagnostics.calibration import BenchmarkBudget, Collective, Measurements, block_sizes, pair_distances
from trials.diagnostics.fabric import FabricTimes, GroupShape, exchanges_of, shapes_of
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

BUDGET = BenchmarkBudget((16, 32), 2**20, 2**16, 2**14, seconds=0.005)
EVERY = tuple(kind for kind in Collective if kind is not Collective.PING_PONG)


def of_a_rank(arguments: Mapping[str, Any], folder: Path, trainer: dict[str, Any]) -> tuple[Any, ...]:
    """Spec, folder, place and report of a forked rank on these numbers of nodes and ranks per node."""
    num_nodes, gpus_per_node = arguments["num_nodes"], arguments["gpus_per_node"]
    layout = Layout(num_nodes=num_nodes, data_parallel=num_nodes * gpus_per_node)
    spec, env = make_spec(layout, gpus_per_node=gpus_per_node, trainer=trainer), RankEnvironment.read(os.environ)
    attempt = AttemptFolder(folder)
    return spec, attempt, env, Report(spec, attempt, env.rank, env.restart, started_at=0.0)


def measure(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A forked rank's benchmarks."""
    from trials.train.diagnostics import benchmarks

    benchmarks.CPU_BUDGET = BUDGET
    of_this_rank = of_a_rank(arguments, folder, calibration.calibration_section(["fp32", "bf16"]))
    return benchmarks.measure(*of_this_rank).to_json() | {"ended_at": None}


def check_fabric(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A forked rank's exchanges."""
    from trials.train.diagnostics import benchmarks

    of_this_rank = of_a_rank(arguments, folder, fabric.fabric_check_section(shapes_of(arguments)))
    benchmarks.CPU_BUDGET, benchmarks.FABRIC_CHECK_S = BUDGET, BUDGET.seconds
    return benchmarks.check_fabric(*of_this_rank).to_json()


def run(ranks, program: str, gpus_per_node: int, num_nodes: int, **arguments: object) -> dict[str, Any]:
    """What all ranks answer alike."""
    arguments |= {"gpus_per_node": gpus_per_node, "num_nodes": num_nodes}
    answers = ranks.run(f"{__name__}:{program}", gpus_per_node * num_nodes, arguments)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


@pytest.mark.parametrize(("gpus_per_node", "num_nodes"), [(1, 1), (3, 1), (2, 3)])
def test_benchmarks_leave_nothing_out_also_where_some_ranks_have_no_partner(ranks, gpus_per_node, num_nodes):
    found = Measurements.from_json(run(ranks, "measure", gpus_per_node, num_nodes))
    assert {rate.precision for rate in found.products} == {"fp32", "bf16"}
    assert min(rate.tflops for rate in found.products) > 0
    assert found.memory_gb_per_s > 0
    assert found.to_host_gb_per_s is found.from_host_gb_per_s is None
    assert sorted({time.num_ranks for time in found.groups}) == block_sizes(gpus_per_node, num_nodes)
    assert sorted({time.apart for time in found.pairs}) == pair_distances(gpus_per_node, num_nodes)
    assert all(time.seconds > 0 for time in (*found.groups, *found.pairs))


@pytest.mark.parametrize(("gpus_per_node", "num_nodes"), [(2, 2), (1, 3)])
def test_every_exchange_is_timed_on_every_group(ranks, gpus_per_node, num_nodes):
    shapes = [GroupShape(2, 1, EVERY), GroupShape(gpus_per_node * num_nodes, 1, EVERY)]
    answer = run(ranks, "check_fabric", gpus_per_node, num_nodes, shapes=[asdict(shape) for shape in shapes])
    found = FabricTimes.from_json(answer)
    assert [time.exchange for time in found.times] == exchanges_of(shapes, gpus_per_node, num_nodes)
    for time_of in found.times:
        assert len(time_of.seconds) == len(time_of.exchange.groups(gpus_per_node, gpus_per_node * num_nodes)) > 0
        assert min(time_of.seconds) > 0
