"""What a forecast is not made of. A forecast itself is in tests/orchestrator/cli/test_forecast.py."""

from __future__ import annotations

import pytest

from orchestrator.planning.forecast import Scaling, forecast
from orchestrator.planning.forecast_inputs import input_from_table
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import Observation
from tests.kit import gpt

pytestmark = pytest.mark.slow

CPUS = Cluster(ACCELERATORS["cpu"], 8, 1)


def measured(engine: str) -> list[Observation]:
    about = "one-node", "made-up", "1.3B", gpt(24, 2048, 16), CPUS, 128
    layouts = [Layout(data_parallel=8, micro_batch_size=n, grad_accum_steps=16 // n, engine=engine) for n in (1, 2, 4)]
    return [Observation(*about, layout.canonical(), "ok", step_time_s=1.0) for layout in layouts]


@pytest.mark.bad_input(53)
def test_rows_of_several_engines_are_refused_where_a_cpu_emulates_the_gpu_of_one():
    ours, theirs = measured("torch"), measured("megatron-lm")
    with pytest.raises(InputError, match="compares megatron-lm and torch on cpu"):
        input_from_table(ours + theirs, [])
    report = forecast(input_from_table(theirs, [], CPUS), [Scaling.WEAK], None)
    assert "a CPU emulated the GPU of engine megatron-lm" in report.notes[0]
