from __future__ import annotations

import json

import pytest

from tests.trials.trainers.specs import spec_of
from trials.trainers.registry import invocation


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_one_connection_is_its_default_with_every_zero_stage_since_sequence_parallelism_needs_it(zero_stage):
    spec = spec_of("megatron-deepspeed", zero_stage=zero_stage, tensor_parallel=2, sequence_parallel=True)
    made = invocation(spec, "python", "/run/a1")
    assert (made.environment, made.refused) == ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {})


def test_megatron_deepspeed_finds_the_layouts_own_deepspeed_config():
    spec = spec_of("megatron-deepspeed", zero_stage=0, bucket_mib=10)
    made = invocation(spec, "python", "/run/a1")
    config = json.loads(made.files["megatron_deepspeed_config.json"])
    assert config["train_batch_size"] == spec.global_batch_size
    assert config["bf16"] == {"enabled": True}
    assert config["zero_optimization"]["stage"] == 0  # the layout's, and that of --zero-stage
    assert "/run/a1/megatron_deepspeed_config.json" in made.command
