from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.importers.deepspeed_config import read_ds_config
from search_spaces.layouts.layout import Layout
from tests.kit import model
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.trainers.common.deepspeed_config import ds_config
from trials.trainers.registry import TRAINERS

deepspeed_problem = TRAINERS["parlay"].export.problem
GPT = model(num_layers=8, num_attention_heads=8, num_key_value_heads=8, vocab_size=256, tied_embeddings=False)

layouts = st.builds(
    Layout,
    tensor_parallel=st.integers(1, 8),
    pipeline_parallel=st.integers(1, 8),
    data_parallel=st.integers(1, 64),
    micro_batch_size=st.integers(1, 16),
    grad_accum_steps=st.integers(1, 64),
    zero_stage=st.integers(0, 3),
    offload=st.sampled_from(["none", "optimizer"]),
    activation_checkpointing=st.sampled_from(["none", "full"]),
    precision=st.sampled_from(["fp32", "bf16", "fp16"]),
    overlap_comm=st.booleans(),
    bucket_mib=st.one_of(st.none(), st.integers(1, 2000)),
    engine=st.just("deepspeed"),
)


@pytest.mark.slow
@given(layout=layouts.filter(lambda layout: deepspeed_problem(layout, GPT) is None))
def test_what_is_written_reads_back_as_the_same_layout_values(layout):
    layout = layout.canonical()
    config = ds_config(layout, 1.0)
    found = read_ds_config(json.dumps(config, allow_nan=False))
    assert found.global_batch_size == layout.global_batch_size
    assert all(note.startswith(("Not read: ", "Defaults are those of ")) for note in found.notes)
    read = replace(layout, **found.layout).canonical()
    for name in found.layout:
        assert getattr(read, name) == getattr(layout, name), name
    required = {"micro_batch_size", "grad_accum_steps", "data_parallel", "zero_stage", "precision"}
    assert required <= set(found.layout)
    for name in ("bucket_mib", "offload", "overlap_comm"):
        assert found.layout.get(name, getattr(Layout(), name)) == getattr(layout, name)


def test_the_config_carries_the_keys_deepspeed_users_know():
    layout = Layout(data_parallel=2, micro_batch_size=4, grad_accum_steps=2, zero_stage=1, precision="bf16")
    config = ds_config(layout, 0.5)
    sizes = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert (sizes | {"gradient_clipping": 0.5, "bf16": {"enabled": True}}).items() <= config.items()
    assert config["zero_optimization"]["stage"] == 1
    assert config["timers"]["throughput"]["synchronized"] is False  # it waits for the device at no micro-batch
    assert not {"optimizer", "pipeline"} & config.keys()


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_is_never_deepspeeds_zero_0_and_adds_gradients_up_in_fp32(precision):
    config = ds_config(Layout(precision=precision), 1.0)
    assert config["zero_optimization"]["stage"] == 1
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}


def test_zero_0_and_a_pipeline_are_deepspeeds_own():
    config = ds_config(Layout(), 1.0)
    assert config["zero_optimization"]["stage"] == 0
    assert "data_types" not in config
    layout = Layout(pipeline_parallel=2, grad_accum_steps=4, activation_checkpointing="full")
    section = ds_config(layout, 0.0)["pipeline"]
    assert section["activation_checkpoint_interval"] == 1
    assert section["use_reentrant"] is False


GPT2 = model(num_layers=6, vocab_size=32)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("llama", [False, True])
@pytest.mark.parametrize(("tensor", "pipeline"), [(1, 1), (2, 1), (1, 2), (4, 4)])
def test_a_bucket_holds_the_fullest_part_of_the_model_and_no_more(tensor, pipeline, tied, llama):
    kind = {"gated_mlp": True, "position_embedding": "rotary", "norm": "rmsnorm"} if llama else {}
    shape = replace(GPT2, tied_embeddings=tied, **kind)
    ranks, weights = TensorParallelRanks(0, tensor), WeightSource(1, torch.device("cpu"))
    plans = [ChunkPlan.of(shape, stage, pipeline) for stage in range(pipeline)]
    stages = [ModelChunk(shape, plan, ranks, weights, ChunkExecution()) for plan in plans]
    layout = Layout(
        tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=2, grad_accum_steps=4, zero_stage=1
    )
    section = ds_config(layout, 1.0, shape)["zero_optimization"]
    assert section["reduce_bucket_size"] == max(sum(p.numel() for p in stage.parameters()) for stage in stages)


def test_a_bucket_is_the_layouts_own_or_deepspeeds_where_that_is_smaller():
    layout = Layout(data_parallel=2, zero_stage=2)
    large = replace(GPT2, num_layers=24, hidden_size=2048, ffn_hidden_size=8192)
    assert ds_config(layout, 1.0, large)["zero_optimization"]["reduce_bucket_size"] == 500_000_000
    named = ds_config(replace(layout, bucket_mib=8), 1.0, GPT2)["zero_optimization"]
    assert named["reduce_bucket_size"] == named["allgather_bucket_size"] == 2 * 2**20
    assert "reduce_bucket_size" not in ds_config(layout, 1.0)["zero_optimization"]
    assert "reduce_bucket_size" not in ds_config(Layout(), 1.0, GPT2)["zero_optimization"]


def test_a_layout_deepspeed_cannot_run_is_reported_with_the_rule_and_what_it_passes_over_is_no_reason():
    """tests/search_spaces/rules/test_check.py has what it runs and refuses."""
    for engine in ("torch", "deepspeed"):
        problem = deepspeed_problem(Layout(offload="optimizer", engine=engine), GPT)
        assert problem.rule.startswith("DeepSpeed offloads the optimizer only with ZeRO")
    layout = Layout(data_parallel=2, overlap_comm=True, bucket_mib=25, torch_compile=True)
    assert deepspeed_problem(layout, GPT) is None
