"""Lines that pretrain_gpt.py of both versions printed on two ranks of a CPU: rank 0's, then the last rank's.

`python -m pytest tests/trials/external/test_megatron_lm.py` runs the script itself, where there is a checkout.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trials.trainers.specs import spec_of
from trials.trainers.common.trainer_log import StepReader
from trials.trainers.registry import LOG_FORMATS

LOGS = Path(__file__).with_name("logs")
IN_FP32 = {"precision": "fp32", "attention_kernel": "math"}
DATA_PARALLEL = {**IN_FP32, "data_parallel": 2, "grad_accum_steps": 2}
LAYOUTS = {
    "data_parallel": DATA_PARALLEL,
    "fsdp": {**DATA_PARALLEL, "zero_stage": 3},
    "interleaved": {**IN_FP32, "data_parallel": 1, "pipeline_parallel": 2, "virtual_pipeline_stages": 2},
}
PRINTED = {
    ("core_v0.16.1", "data_parallel"): [(0.3025, 6.263412, 2.095), (0.1831, 6.264729, 2.171), (0.0471, 6.24039, 1.991)],
    ("core_v0.16.1", "fsdp"): [(0.4166, 6.263412, 2.095), (0.3394, 6.264729, 2.171), (0.2116, 6.24039, 1.991)],
    ("core_v0.16.1", "interleaved"): [(0.2483, 6.250303, 2.073), (0.1837, 6.260374, 2.062), (0.1151, 6.253073, 1.994)],
    ("main", "data_parallel"): [(0.077, 6.252232, 1.968), (0.0654, 6.269662, 2.241), (0.0474, 6.260708, 1.92)],
    ("main", "fsdp"): [(0.2063, 6.252232, 1.968), (0.1557, 6.269662, 2.241), (0.1127, 6.260708, 1.92)],
    ("main", "interleaved"): [(0.1286, 6.235668, 2.001), (0.1118, 6.257008, 2.189), (0.1198, 6.265849, 1.92)],
}
"""Seconds, loss and gradient norm of the first three iterations; time and loss of the second are means of two."""
PEAK_MIB = {
    ("core_v0.16.1", "data_parallel"): 439.29,
    ("core_v0.16.1", "fsdp"): 442.05,
    ("core_v0.16.1", "interleaved"): 436.5,
    ("main", "data_parallel"): 446.88,
    ("main", "fsdp"): 450.91,
    ("main", "interleaved"): 443.68,
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("version", ["core_v0.16.1", "main"])
def test_what_it_prints_is_read(version, name):
    spec = spec_of("megatron-lm", **LAYOUTS[name])
    reader = StepReader(LOG_FORMATS["megatron-lm"], spec)
    steps = [reader.feed(line) for line in (LOGS / f"{version}-{name}.txt").read_text().splitlines()]
    found = [(round(step.step_time_s, 4), step.loss, step.grad_norm) for step in steps if step is not None]
    assert found == PRINTED[version, name]
    layout = spec.layout
    assert reader.proof == {
        "world_size": 2,
        "data_parallel": layout.data_parallel,
        "tensor_parallel": 1,
        "pipeline_parallel": layout.pipeline_parallel,
        "micro_batches_per_step": layout.grad_accum_steps,
        "global_batch_size": 4,
        "vocab_size": 512,
    }
    assert reader.peak_memory_gib == reader.peak_memory_allocated_gib == PEAK_MIB[version, name] / 1024
