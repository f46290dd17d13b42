"""Forecasts on a synthetic machine with known truth: the models' own formulas with other constants and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.planning.forecast import ForecastAnswer, Scaling, forecast
from orchestrator.planning.forecast_inputs import input_from_table
from search_spaces.cost_model.constants import CONSTANTS, typical_constants
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.measured_table import Observation
from tests.kit import gpt

pytestmark = pytest.mark.slow

MODEL = gpt(24, 2048, 16)
NODE = LinkDomain("node", 8, 235, 10.2)
CLUSTER = Cluster(ACCELERATORS["a100-80gb"], 8, 2, Links((NODE,), Fabric(nic_gb_per_s=50, latency_us=5)))
BATCH = 128


def layouts_of(num_nodes: int) -> list[Layout]:
    ranks = 8 * num_nodes
    return [
        Layout(
            num_nodes=num_nodes,
            tensor_parallel=tensor,
            pipeline_parallel=stages,
            data_parallel=ranks // tensor // stages,
            micro_batch_size=size,
            grad_accum_steps=BATCH * tensor * stages // ranks // size,
            sequence_parallel=tensor > 1,
            precision="bf16",
            attention_kernel="flash",
        ).canonical()
        for tensor in (1, 2, 4)
        for stages in (1, 2)
        for size in (1, 2)
    ]


def truth(**factors: float) -> np.ndarray:
    """Typical constants, except these."""
    return typical_constants() * np.array([factors.get(term, 1.0) for term in CONSTANTS])


def true_seconds(layouts: Sequence[Layout], constants: np.ndarray) -> np.ndarray:
    return StepTerms.of(MODEL, CLUSTER, LayoutTable.of(layouts)).seconds(constants)


def measured(num_nodes: int, constants: np.ndarray) -> list[Observation]:
    layouts = layouts_of(num_nodes)
    noise = np.exp(0.02 * np.random.default_rng(1).standard_normal(len(layouts)))
    cluster = replace(CLUSTER, num_nodes=num_nodes, given_links=None)
    about = f"{num_nodes}-nodes", "made-up", "1.3B", MODEL, cluster, BATCH
    seconds = (true_seconds(layouts, constants) * noise).tolist()
    return [Observation(*about, layout, "ok", step_time_s=s) for layout, s in zip(layouts, seconds, strict=True)]


def forecast_from(rows: Sequence[Observation], cluster: Cluster = CLUSTER) -> ForecastAnswer:
    return forecast(input_from_table(rows, [], cluster), [Scaling.WEAK, Scaling.STRONG], None)


@pytest.mark.parametrize(
    "constants",
    [truth(), truth(gemm=1.2, data_parallel=2), truth(launches=3)],
    ids=["as-expected", "slow-network", "slow-host"],
)
def test_what_a_step_takes_there_lies_in_the_interval(constants):
    report = forecast_from(measured(1, constants) + measured(2, constants))
    assert [(f.scaling.value, f.num_nodes) for f in report.forecasts] == [
        (scaling, nodes) for scaling in ("weak", "strong") for nodes in (4, 8, 16)
    ]
    for found in report.forecasts:
        (seconds,) = true_seconds([found.layout], constants)
        assert found.step_time_low_s < seconds < found.step_time_high_s
        assert found.step_time_low_s < found.step_time_s < found.step_time_high_s


@pytest.mark.bad_input(53)
def test_rows_of_several_engines_are_refused_where_a_cpu_emulates_the_gpu_of_one():
    cpu = Cluster(ACCELERATORS["cpu"], 8, 2)
    rows = [replace(r, cluster=replace(cpu, num_nodes=r.layout.num_nodes)) for r in measured(1, truth())]
    theirs = [replace(r, layout=replace(r.layout, engine="megatron-lm")) for r in rows]
    with pytest.raises(InputError, match="compares megatron-lm and torch on cpu"):
        input_from_table(rows + theirs, [])
    assert "a CPU emulated the GPU of engine megatron-lm" in forecast_from(theirs, cluster=cpu).notes[0]
