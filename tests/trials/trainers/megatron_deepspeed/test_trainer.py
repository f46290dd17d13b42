from __future__ import annotations

import json

from tests.trials.trainers.specs import spec_of
from trials.trainers.registry import invocation


def test_megatron_deepspeed_finds_the_layouts_own_deepspeed_config():
    spec = spec_of("megatron-deepspeed", zero_stage=0, bucket_mib=10)
    made = invocation(spec, "python", "/run/a1")
    config = json.loads(made.files["megatron_deepspeed_config.json"])
    assert config["train_batch_size"] == spec.global_batch_size
    assert config["bf16"] == {"enabled": True}
    assert config["zero_optimization"]["stage"] == 0  # the layout's, and that of --zero-stage
    assert "/run/a1/megatron_deepspeed_config.json" in made.command
