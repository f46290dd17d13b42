"""Overrides of a Megatron-Bridge recipe (NeMo's interface to Megatron-LM's core) for a layout. Standard library only.

Key names: Megatron-Bridge 0.6.0 src/megatron/bridge/training/config.py and models/gpt_provider.py, with megatron-core
0.16.1. Its recipes set much themselves, so features that a layout does not use are switched off by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.layouts.layout import AXES, Layout
from search_spaces.model_shape import ModelShape
from search_spaces.routing import BALANCED, Routing
from trials.trainers.common.megatron_experts import ROUTER_OPTIONS, dispatcher_options, moe_layer_freq
from trials.trainers.common.megatron_options import (
    CONTEXT_TRANSPORTS,
    CUDA_GRAPH_IMPLEMENTATIONS,
    SHARDING_STRATEGIES,
    bucket_parameters,
)
from trials.trial import TrialSpec


def bridge_overrides(spec: TrialSpec) -> dict[str, Any]:
    """The values by their dotted keys; None clears a recipe's value. The layout is canonical and violates no rule.

    An activation function cannot be given as text: the recipe's own has to be SiLU for a gated MLP and GELU for any
    other.
    """
    layout = spec.layout
    return {
        **{f"model.{name}": value for part in _parts_of_model(spec) for name, value in part.items()},
        "dataset.seq_length": spec.model.seq_length,  # the recipe copies it to `sequence_length`
        "train.micro_batch_size": layout.micro_batch_size,
        "train.global_batch_size": spec.global_batch_size,
        "mixed_precision": MIXED_PRECISIONS[quantization_of(layout)],
        "comm_overlap": None,  # otherwise it overrides the keys below
        **{f"ddp.{name}": value for name, value in _data_parallel(layout).items()},
        **{f"optimizer.{name}": value for name, value in _optimizer(layout).items()},
        "dist.use_tp_pp_dp_mapping": layout.rank_order == "tp-pp-dp",
        "dist.use_megatron_fsdp": layout.zero_stage > 1,
        **_of_full_sharding(layout),
        **_of_whole_graph(layout),
        **_routing(spec),
    }


QUANTIZATION = ("matmul_precision", "layers_in_16_bits", "quantized_weights")
"""Fields of a layout that one of Megatron-Bridge's precisions decides together."""


def quantization_of(layout: Layout) -> tuple[Any, ...]:
    return tuple(getattr(layout, name) for name in QUANTIZATION)


MIXED_PRECISIONS: Mapping[tuple[Any, ...], str] = {
    ("same", 0, False): "bf16_mixed",
    ("fp8_delayed", 0, True): "bf16_with_fp8_delayed_scaling_mixed",
    ("fp8_tensorwise", 1, True): "bf16_with_fp8_current_scaling_mixed",
    ("fp8_blockwise", 0, False): "bf16_with_fp8_subchannel_scaling_mixed",
    ("mxfp8", 0, True): "bf16_with_mxfp8_mixed",
    ("nvfp4", 0, True): "bf16_with_nvfp4_mixed",
}
"""Names of Megatron-Bridge's precisions (training/mixed_precision.py); a text override chooses one as it is."""


def format_overrides(overrides: dict[str, Any]) -> Iterator[str]:
    """`key=value` as Hydra reads them."""
    for key, value in overrides.items():
        yield f"{key}={_text(value)}"


def _routing(spec: TrialSpec) -> dict[str, Any]:
    """The routing of a model with experts; the recipes force none."""
    routing = Routing.of(spec.measure.routing)
    return {"model.moe_router_force_load_balancing": True} if routing.kind == BALANCED else {}


def _parts_of_model(spec: TrialSpec) -> tuple[dict[str, Any], ...]:
    model, layout = spec.model, spec.layout
    of_layout = _stages(layout), _recomputation(layout), _cuda_graphs(layout)
    return *of_layout, _model(model), _experts(model, layout), _latent(model)


def _stages(layout: Layout) -> dict[str, Any]:
    chunks = layout.virtual_pipeline_stages
    return {
        "tensor_model_parallel_size": layout.tensor_parallel,
        "pipeline_model_parallel_size": layout.pipeline_parallel,
        "virtual_pipeline_model_parallel_size": chunks if chunks > 1 else None,
        **_context(layout),
        "sequence_parallel": layout.sequence_parallel,
        # Megatron-LM's own choice: interleaved stages overlap what they send, others send in one batch.
        "overlap_p2p_comm": chunks > 1,
        "batch_p2p_comm": chunks == 1,
        "tp_comm_overlap": layout.tensor_parallel_overlap,
        "account_for_embedding_in_pipeline_split": "embedding" in layout.pipeline_split,
        "account_for_loss_in_pipeline_split": "loss" in layout.pipeline_split,
        "num_layers_in_first_pipeline_stage": layout.first_stage_layers,
        "num_layers_in_last_pipeline_stage": layout.last_stage_layers,
        "cpu_offloading": layout.offloaded_layers > 0,
        "cpu_offloading_weights": False,
        "cpu_offloading_num_layers": layout.offloaded_layers,
    }


def _context(layout: Layout) -> dict[str, Any]:
    count, inner = layout.context_parallel, layout.context_inner
    return {
        "context_parallel_size": count,
        **({"cp_comm_type": CONTEXT_TRANSPORTS[layout.context_transport]} if count > 1 else {}),
        "hierarchical_context_parallel_sizes": (
            [str(inner), str(count // inner)] if layout.context_transport == "a2a_p2p" else None
        ),
    }


def _recomputation(layout: Layout) -> dict[str, Any]:
    granularity, layers = layout.activation_checkpointing, layout.recompute_layers
    is_full, is_default = granularity == "full", layout.recompute_modules == AXES["recompute_modules"].default
    return {
        "recompute_granularity": None if granularity == "none" else granularity,
        "recompute_method": None if not is_full else "uniform" if layers is None else "block",
        "recompute_num_layers": (layers or 1) if is_full else None,
        # Null is the core's own default: the attention scores.
        "recompute_modules": None if is_default else list(layout.modules_recomputed) or None,
    }


def _cuda_graphs(layout: Layout) -> dict[str, Any]:
    if layout.cuda_graphs == "none":
        return {"cuda_graph_impl": "none", "cuda_graph_scope": []}
    return {
        "cuda_graph_impl": CUDA_GRAPH_IMPLEMENTATIONS[layout.cuda_graphs == "full_iteration"],
        "cuda_graph_scope": list(layout.modules_captured) or [layout.cuda_graphs],
        "use_te_rng_tracker": True,
        **(_CAPTURED_EXPERTS if layout.captures_experts else {}),
    }


_CAPTURED_EXPERTS = {
    "moe_paged_stash": True,
    "moe_expert_rank_capacity_factor": 1.5,
    "use_transformer_engine_op_fuser": True,
}


def _model(model: ModelShape) -> dict[str, Any]:
    groups = model.num_key_value_heads
    return {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": groups,
        "kv_channels": model.head_size,
        "seq_length": model.seq_length,
        "vocab_size": model.vocab_size,
        "should_pad_vocab": False,
        "gated_linear_unit": model.gated_mlp,
        "add_bias_linear": model.has_biases,
        "add_qkv_bias": model.has_biases or model.qkv_bias,
        "qk_layernorm": model.qk_norm or model.key_value_latent_size is not None,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "position_embedding_type": "rope" if model.position_embedding == "rotary" else "learned_absolute",
        "rotary_base": model.rotary_base,
        "window_size": None,
        "softmax_type": "learnable" if model.attention_sinks else "vanilla",
        "mtp_num_layers": model.num_mtp_layers or None,
        "share_embeddings_and_output_weights": model.tied_embeddings,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }


def _experts(model: ModelShape, layout: Layout) -> dict[str, Any]:
    """Experts and their ranks, without what recipes balance, group and drop. A dense model leaves the ranks
    that split an expert to the core, since another number restricts the order of ranks."""
    if model.num_experts is None:
        return {"num_moe_experts": None, "expert_model_parallel_size": 1, "expert_tensor_parallel_size": None}
    return {
        "num_moe_experts": model.num_experts,
        "expert_model_parallel_size": layout.expert_parallel,
        "expert_tensor_parallel_size": layout.expert_tensor_parallel,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_width,
        "moe_shared_expert_intermediate_size": model.shared_expert_ffn_hidden_size,
        "moe_layer_freq": moe_layer_freq(model),
        **_ROUTING,
        **{_key(name): value for name, value in dispatcher_options(layout)},
        "moe_grouped_gemm": True,
        "moe_shared_expert_overlap": False,
        "overlap_moe_expert_parallel_comm": layout.expert_overlap,
        **({"bias_dropout_fusion": False} if model.has_biases else {}),
    }


def _key(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


_ROUTING: dict[str, Any] = {
    **{_key(name): value for name, value in ROUTER_OPTIONS},
    "moe_router_score_function": "softmax",
    "moe_router_pre_softmax": False,
    "moe_router_enable_expert_bias": False,
    "moe_router_num_groups": None,
    "moe_router_group_topk": None,
    "moe_router_topk_scaling_factor": None,
    "moe_z_loss_coeff": None,
    "moe_expert_capacity_factor": None,
}
"""Routing as Parlay's engines have it, in place of a recipe's own."""


def _latent(model: ModelShape) -> dict[str, Any]:
    """Latent attention, for a recipe whose model has it; positions are not scaled."""
    if model.key_value_latent_size is None:
        return {"multi_latent_attention": False}
    rotated = model.rotary_head_size or 0
    return {
        "multi_latent_attention": True,
        "q_lora_rank": model.query_latent_size,
        "kv_lora_rank": model.key_value_latent_size,
        "qk_head_dim": model.head_size - rotated,
        "qk_pos_emb_head_dim": rotated,
        "v_head_dim": model.value_head_size,
        "rope_type": "rope",
        "rotary_scaling_factor": 1.0,
        "apply_rope_fusion": False,
    }


def _data_parallel(layout: Layout) -> dict[str, Any]:
    return {
        "use_distributed_optimizer": layout.zero_stage > 0,
        "use_megatron_fsdp": layout.zero_stage > 1,
        "data_parallel_sharding_strategy": SHARDING_STRATEGIES.get(layout.zero_stage, "no_shard"),
        "overlap_grad_reduce": layout.overlap_comm,
        "overlap_param_gather": False,
        "num_distributed_optimizer_instances": layout.data_parallel_replicas,
        "bucket_size": bucket_parameters(layout),
    }


def _optimizer(layout: Layout) -> dict[str, Any]:
    """Megatron-Bridge offloads no states unless told what fraction."""
    offloads = layout.offload == "optimizer"
    return {
        "use_distributed_optimizer": layout.zero_stage > 0,
        "overlap_param_gather": False,
        "optimizer_cpu_offload": offloads,
        **({"optimizer_offload_fraction": 1.0, "use_precision_aware_optimizer": True} if offloads else {}),
    }


def _of_full_sharding(layout: Layout) -> dict[str, Any]:
    """Keys of Megatron-FSDP, which has its own checkpoint format and gradients."""
    if layout.zero_stage < 2:
        return {}
    return {"checkpoint.ckpt_format": "fsdp_dtensor", "model.gradient_accumulation_fusion": False}


def _of_whole_graph(layout: Layout) -> dict[str, Any]:
    """The host cannot look at losses and gradients in a graph of all passes."""
    if layout.cuda_graphs != "full_iteration":
        return {}
    return {"rerun_state_machine.check_for_nan_in_loss": False, "ddp.check_for_nan_in_grad": False}


def _text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
