"""Exports of layouts that cover the axes, as the installed DeepSpeed and accelerate understand them.

torchtitan's are in tests/trials/trainers/torchtitan/test_export.py, megatron-core's in test_megatron_core.py beside it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from search_spaces.engines import ACCELERATE
from search_spaces.layouts.layout import Layout
from tests.oracles.cases import NUM_CASES, SHAPES, export_cases
from tests.oracles.configs import plain
from tests.oracles.meanings import BYTES, MEBI, PRECISIONS, Meaning, differences

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_layouts_of_a_trainer_are_different_and_have_every_degree_precision_and_shape():
    cases = export_cases("deepspeed")
    layouts, models = [case.spec.layout for case in cases], [case.spec.model for case in cases]
    assert len({(case.spec.layout.key, case.spec.model) for case in cases}) == NUM_CASES
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        assert {getattr(layout, name) for layout in layouts} == {1, 2, 4}
    assert {layout.precision for layout in layouts} == {"fp32", "bf16", "fp16"}
    assert {layout.zero_stage for layout in layouts} == {0, 1, 2, 3}
    assert {name for name, model in SHAPES.items() if model in models} == SHAPES.keys() - {"deepseek", "latent"}


def test_deepspeed_understands_every_layout_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # DeepSpeed would set its logging up
    for case in export_cases("deepspeed"):
        assert differences(case.spec, of_deepspeed(json.loads(case.files["ds_config.json"]), case.spec.layout)) == []


def of_deepspeed(config: dict[str, Any], layout: Layout) -> Meaning:
    """What DeepSpeed's configuration and engine make of the file; degrees, model and recomputation are the program's.
    AssertionError or ValueError where they refuse it."""
    import torch
    from deepspeed.runtime import config as runtime
    from deepspeed.runtime.engine import DeepSpeedEngine

    mesh = SimpleNamespace(get_data_parallel_world_size=lambda: layout.data_parallel)
    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    with patch.object(runtime.dist, "get_rank", lambda *_: 0):
        made = runtime.DeepSpeedConfig(config, mpu=mesh)
        vars(engine).update(_config=made, global_rank=0, pipeline_parallelism=layout.pipeline_parallel > 1)
        engine._do_optimizer_sanity_check(torch.optim.AdamW([torch.zeros(1)]))
    model_dtype, gradient_dtype = map(plain, engine.get_data_types())
    zero = made.zero_config
    # Without a bucket of the layout's, reductions alone have one: DeepSpeed's number, at most that of the model.
    elements = zero.reduce_bucket_size if "allgather_bucket_size" in config["zero_optimization"] else None
    return {
        "deepspeed_batch": (
            made.train_batch_size,
            made.train_micro_batch_size_per_gpu,
            made.gradient_accumulation_steps,
        ),
        "deepspeed_zero_stage": zero.stage,
        "deepspeed_precision": PRECISIONS[model_dtype],
        "gradient_dtype": PRECISIONS[gradient_dtype],
        "offload": {None: "none", "cpu": "optimizer"}[zero.offload_optimizer and plain(zero.offload_optimizer.device)],
        "overlap_comm": zero.overlap_comm,
        "bucket_mib": elements and elements * BYTES[plain(engine.communication_data_type)] / MEBI,
    }


def test_accelerate_understands_every_layout_as_it_is(tmp_path):
    if find_spec(ACCELERATE) is None:
        pytest.skip("accelerate is not installed: the extra `trainers`")
    for case in export_cases(ACCELERATE):
        (tmp_path / "accelerate.yaml").write_text(case.files["accelerate.yaml"])
        assert differences(case.spec, of_accelerate(str(tmp_path / "accelerate.yaml"))) == []


def of_accelerate(path: str) -> Meaning:
    """What a script finds in the environment that accelerate's launcher makes of the file; batch and kernel are the
    script's."""
    from accelerate import ParallelismConfig
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin, TorchDynamoPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    words = ["--config_file", path, "--main_process_port", "0", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    by_torchrun = args.use_fsdp or args.multi_gpu
    environment = prepare_multi_gpu_env(args) if by_torchrun else prepare_simple_launcher_cmd_env(args)[1]
    with patch.dict(os.environ, environment, clear=True):
        precision, dynamo = os.environ["ACCELERATE_MIXED_PRECISION"], TorchDynamoPlugin()
        is_mesh, is_sharded = (
            os.environ.get(f"ACCELERATE_USE_{name}") == "true" for name in ("PARALLELISM_CONFIG", "FSDP")
        )
        sizes = ParallelismConfig() if is_mesh else None
        fsdp = FullyShardedDataParallelPlugin() if is_sharded else None
        if fsdp and precision != "no":
            fsdp.set_mixed_precision(precision)
    policy = fsdp and fsdp.mixed_precision_policy
    replicas, shards = (sizes.dp_replicate_size, sizes.dp_shard_size) if sizes else (1, args.num_processes)
    assert fsdp is None or (fsdp.fsdp_version, type(fsdp.cpu_offload).__name__) == (2, "OffloadPolicy")
    assert policy is None or policy.param_dtype == policy.reduce_dtype
    return {
        "num_nodes": args.num_machines,
        "tensor_parallel": sizes.tp_size * sizes.cp_size * sizes.sp_size if sizes else 1,
        "data_parallel": replicas * shards,
        "data_parallel_replicas": replicas,
        "zero_stage": 0 if fsdp is None else 3 if fsdp.reshard_after_forward else 2,
        "offload": "none",
        "activation_checkpointing": "full" if fsdp and fsdp.activation_checkpointing else "none",
        "precision": PRECISIONS[plain(policy.param_dtype)] if policy else precision.replace("no", "fp32"),
        "torch_compile": plain(dynamo.backend) == "INDUCTOR" and dynamo.use_regional_compilation,
    }
