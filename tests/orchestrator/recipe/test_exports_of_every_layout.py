"""Every layout is exported and read back as the same one, or refused with a rule."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.importers.deepspeed_config import read_ds_config
from orchestrator.recipe.exports import ExportStatus
from search_spaces.engines import ACCELERATE_LAUNCH, OWN_ENGINES, TORCHTITAN
from search_spaces.layouts.layout import EXPERT_GROUPS, Layout
from search_spaces.model_shape import ModelShape
from tests.oracles.cases import SHAPES
from tests.orchestrator.recipe.export_readers import read_export
from tests.orchestrator.recipe.exported import NOT_OURS, exported, half, our_spec
from tests.search_spaces.layouts.strategies import FIELD_VALUES, values_of
from tests.trials.trainers.specs import GPT2, LLAMA

pytestmark = pytest.mark.slow

# -- every layout is exported and read back, or refused with a rule

_ANY = FIELD_VALUES | {
    "num_nodes": st.just(1),
    "tensor_parallel": st.sampled_from([1, 2]),
    "pipeline_parallel": st.sampled_from([1, 2, 4]),
    "data_parallel": st.sampled_from([1, 2]),
    "grad_accum_steps": st.integers(1, 8),
    "virtual_pipeline_stages": st.sampled_from([1, 2]),
    "engine": st.sampled_from(OWN_ENGINES),
    "bucket_mib": values_of("bucket_mib", most=500),
    **dict.fromkeys(EXPERT_GROUPS, st.just(1)),
}
_USUAL = _ANY | {
    "precision": st.sampled_from(["bf16", "fp16"]),
    "attention_kernel": st.just("flash"),
    "torch_compile": st.just(False),
    "matmul_precision": st.just("same"),
    "grad_accum_steps": st.just(8),
    "zero_stage": st.integers(0, 1),
    "offload": st.just("none"),
}
_OVERLAPPED = {"overlap_comm": st.just(True)}
_PLAIN = {"overlap_comm": st.just(False), "bucket_mib": st.none(), "rank_order": st.just("tp-dp-pp")}
_OF_TORCHTITAN = {
    "precision": st.sampled_from(["fp32", "bf16"]),
    "attention_kernel": st.sampled_from(["flex", "flash"]),
    "zero_stage": st.sampled_from([0, 2, 3]),
    "recompute_modules": st.just("ops"),
    "data_parallel_replicas": st.just(1),
    "tensor_parallel_overlap": st.just(False),
    "matmul_precision": FIELD_VALUES["matmul_precision"],
    "engine": st.just(TORCHTITAN),
}
_ENGINES = {"megatron-bridge": "megatron-lm", "accelerate": ACCELERATE_LAUNCH}
"""Engines with another name than their trainer."""
_DATA_PARALLEL = _PLAIN | {
    "tensor_parallel": st.just(1),
    "pipeline_parallel": st.just(1),
    "data_parallel": st.sampled_from([1, 2, 4]),
    "zero_stage": st.sampled_from([0, 2, 3]),
    "data_parallel_replicas": st.sampled_from([1, 2]),
}
_MIXTURE = (_ANY, _USUAL | _OVERLAPPED, _USUAL | _PLAIN, _USUAL | _PLAIN | _OF_TORCHTITAN, _ANY | _DATA_PARALLEL)
layouts = st.one_of(*(st.builds(Layout, **fields) for fields in _MIXTURE)).map(Layout.canonical)
"""Anything, most of which some rule refuses, and what most trainers run."""


@given(layout=layouts, model=st.sampled_from([GPT2, LLAMA]))
@example(layout=Layout(grad_accum_steps=8, context_parallel=2, precision="bf16", attention_kernel="flash"), model=GPT2)
@example(layout=Layout(grad_accum_steps=8, precision="bf16", attention_kernel="flash", settings="env.A=1"), model=GPT2)
def test_every_layout_is_exported_and_read_back_or_refused_with_a_rule(layout, model):
    made = exported(our_spec(layout, model))
    assert set(made) == {"deepspeed", *NOT_OURS}
    for trainer in NOT_OURS:
        export = made[trainer]
        if export.status is ExportStatus.REFUSED:
            assert not export.files
            assert export.unrun_start is None
            assert (export.rule or "").startswith(f"{trainer}.")
            assert export.message
            continue
        read, said = read_export(trainer, export.files, our_spec(layout, model))
        # Settings are on the start line, not in the files.
        assert read == replace(layout.without_settings, engine=_ENGINES.get(trainer, trainer)).canonical()
        assert said.items() <= asdict(model).items()


@given(layout=layouts)
def test_a_deepspeed_configuration_says_the_batch_zero_and_the_precision(layout):
    export = exported(our_spec(layout))["deepspeed"]
    if export.status is ExportStatus.REFUSED:
        assert (export.rule or "").startswith("deepspeed.")
        return
    found = read_ds_config(export.files["ds_config.json"])
    assert found.global_batch_size == layout.global_batch_size
    for name in ("micro_batch_size", "grad_accum_steps", "data_parallel", "precision"):
        assert found.layout[name] == getattr(layout, name)
    least = 0 if layout.precision == "fp32" else 1
    assert found.layout["zero_stage"] == max(least, replace(layout, engine="deepspeed").canonical().zero_stage)


# -- what is refused

SELECTIVE = {"activation_checkpointing": "selective"}
FP32 = {"attention_kernel": "flex", "precision": "fp32"}


@pytest.mark.parametrize(
    ("trainer", "model", "fields", "rule"),
    [
        ("deepspeed", LLAMA, {"pipeline_parallel": 2, "zero_stage": 3}, "deepspeed.zero_stage"),
        ("megatron-lm", LLAMA, {"bucket_mib": 25}, "megatron-lm.bucket_mib"),
        ("megatron-bridge", LLAMA, {"attention_kernel": "math"}, "megatron-bridge.attention_kernel"),
        ("megatron-bridge", LLAMA, {"precision": "fp16"}, "megatron-bridge.precision"),
        ("gpt-neox", GPT2, {"activation_checkpointing": "selective"}, "gpt-neox.activation_checkpointing"),
        ("gpt-neox", GPT2, {"pipeline_parallel": 2, "rank_order": "tp-pp-dp"}, "gpt-neox.rank_order"),
        ("torchtitan", GPT2, {}, "torchtitan.norm"),
        ("torchtitan", LLAMA, {"zero_stage": 1}, "torchtitan.zero_stage"),
        ("torchtitan", LLAMA, {"attention_kernel": "math"}, "torchtitan.attention_kernel"),
        ("torchtitan", LLAMA, {**SELECTIVE, "recompute_modules": "mlp"}, "torchtitan.recompute_modules"),
        ("torchtitan", LLAMA, {**FP32, "matmul_precision": "fp8_rowwise"}, "torchtitan.matmul_precision"),
        *((name, LLAMA, {"matmul_precision": "fp8_rowwise"}, f"{name}.matmul_precision") for name in NOT_OURS[:-1]),
        ("deepspeed", LLAMA, {"zero_stage": 1, "matmul_precision": "fp8_rowwise"}, "deepspeed.matmul_precision"),
        ("accelerate", GPT2, {"zero_stage": 1}, "accelerate.zero_stage"),
        ("nanotron", GPT2, {}, "nanotron.gated_mlp"),
    ],
)
def test_what_a_trainer_cannot_say_has_no_file_and_a_rule(trainer, model, fields, rule):
    export = exported(our_spec(half(**fields), model))[trainer]
    assert (export.status, export.rule, export.files) == (ExportStatus.REFUSED, rule, {})
    assert export.message


@pytest.mark.parametrize("shape", ["qwen3-moe", "deepseek", "latent"])
@pytest.mark.parametrize("trainer", ["megatron-lm", "megatron-bridge"])
def test_experts_latent_attention_and_further_tokens_are_read_back(trainer, shape):
    model = SHAPES[shape]
    degrees = dict.fromkeys(EXPERT_GROUPS, 2) if model.num_experts else {}
    layout = half(zero_stage=1, tensor_parallel=2, data_parallel=4, sequence_parallel=True, **degrees)
    spec = our_spec(layout, model)
    found, read_model = read_export(trainer, exported(spec)[trainer].files, spec)
    assert found == replace(layout, engine="megatron-lm")
    assert ModelShape(**{"vocab_size": model.vocab_size, **read_model}) == model
