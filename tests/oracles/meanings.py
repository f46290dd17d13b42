"""Meaning of an export to its trainer, and of the layout, by the same names.

A bucket is in MiB: what the trainer counts, parameters or elements, times the bytes of one in the dtype that it sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.engines import ENGINE_PROFILES
from search_spaces.layouts.layout import AXES
from search_spaces.routing import BALANCED, LEARNED, Routing
from trials.trial import TrialSpec

Values = Mapping[str, Any]
Meaning = dict[str, Any]

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_RECOMPUTED_MODULES = AXES["recompute_modules"]
_ROUTING = ("softmax of the chosen", "no other auxiliary loss", "fp32")
"""Weights of a token's experts, what balances them, and the arithmetic of their logits."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MEBI = 2**20
_MOMENTS = {"float32": "fp32", "bfloat16": "bf16", "uint8": "fp8"}
_SHARDED = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_POSITIONS = {"rope": "rotary", "learned_absolute": "learned", "rotary": "rotary", "learned": "learned"}


def _same(values: Any) -> Any:
    """The value that all of them have; the sorted values where they differ."""
    found = sorted(set(values))
    return found[0] if len(found) == 1 else found


def meaning_of_layout(spec: TrialSpec) -> Meaning:
    """Every field of the layout and the model, and what follows from them."""
    layout, model = spec.layout, spec.model
    recomputes = layout.activation_checkpointing == "full"
    return {
        **layout.to_json(),
        **model.to_json(),
        "global_batch_size": spec.global_batch_size,
        "gradient_dtype": gradient_dtype(spec),
        "has_biases": model.has_biases,
        "context_groups": [2, layout.context_parallel // 2] if layout.context_transport == "a2a_p2p" else None,
        "head_size": model.head_size,
        "mlp_activation": model.mlp_activation,
        "max_positions": model.seq_length,
        "expert_width": model.expert_width if model.num_experts else None,
        "expert_layers": [layer for layer in range(model.num_layers) if model.has_experts(layer)],
        "routing": (*_ROUTING, Routing.of(spec.measure.routing).kind) if model.num_experts else None,
        "dropout": (0.0, 0.0),
        "recomputed_layers_at_once": 1 if recomputes and layout.recompute_layers is None else None,
        "deepspeed_zero_stage": _deepspeed_zero_stage(spec),
        "deepspeed_batch": (spec.global_batch_size, layout.micro_batch_size, layout.grad_accum_steps),
        "deepspeed_precision": layout.precision,
    }


def gradient_dtype(spec: TrialSpec) -> str:
    """The dtype in which gradients are summed, as the memory model counts their bytes."""
    layout = spec.layout
    profile = ENGINE_PROFILES[layout.engine]
    is_summed = profile.sums_bf16_in_fp32 and layout.precision == "bf16" and layout.zero_stage > 0
    if layout.gradients_in_bf16:
        return "bf16"
    return "fp32" if is_summed or profile.half.gradients >= 4 else layout.precision


def _deepspeed_zero_stage(spec: TrialSpec) -> int:
    """DeepSpeed alone has ZeRO 1 at least in half precision (trials/trainers/common/deepspeed_config.py)."""
    layout = spec.layout
    is_raised = layout.engine == "deepspeed" and layout.precision != "fp32"
    return max(layout.zero_stage, int(is_raised))


def of_megatron_lm(values: Values, configs: Mapping[str, Values]) -> Meaning:
    """Megatron-LM by its three configurations; `values` has what is in none of them."""
    model, ddp, optimizer = configs["transformer"], configs["ddp"], configs["optimizer"]
    return {
        **_degrees_of_megatron(model, values),
        **_context_of_megatron_lm(model),
        "sequence_parallel": model["sequence_parallel"],
        "virtual_pipeline_stages": model["virtual_pipeline_model_parallel_size"] or 1,
        "rank_order": "tp-pp-dp" if values["use_tp_pp_dp_mapping"] else "tp-dp-pp",
        "zero_stage": _zero_of_megatron_lm(ddp, optimizer),
        "offload": "optimizer" if _offloads(optimizer) else "none",
        "overlap_comm": ddp["overlap_grad_reduce"],
        "bucket_mib": _bucket_of_megatron_lm(values, model, ddp),
        "gradient_dtype": PRECISIONS[_gradients_of_megatron_lm(model, ddp)],
        "moment_dtype": _same(_MOMENTS[optimizer[name]] for name in ("exp_avg_dtype", "exp_avg_sq_dtype")),
        **_quantization_of_megatron_lm(model),
        "precision": _same(PRECISIONS[config["params_dtype"]] for config in (model, optimizer)),
        **_recomputation_of_megatron_lm(model),
        "tensor_parallel_overlap": model["tp_comm_overlap"],
        "cuda_graphs": _graphs_of_megatron_lm(model),
        "data_parallel_replicas": ddp["num_distributed_optimizer_instances"],
        "pipeline_split": "+".join(part for part in _COUNTED if model[f"account_for_{part}_in_pipeline_split"])
        or "own",
        "first_stage_layers": model["num_layers_in_first_pipeline_stage"],
        "last_stage_layers": model["num_layers_in_last_pipeline_stage"],
        "attention_kernel": {"flash": "flash", "fused": "flash", "unfused": "math"}.get(model["attention_backend"]),
        "dropout": (model["attention_dropout"], model["hidden_dropout"]),
        **{name: model[name] for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")},
        "num_key_value_heads": model["num_query_groups"],
        "norm": model["normalization"].lower(),
        **_features_of_megatron_lm(model, values),
        **_experts_of_megatron_lm(model),
        **_latent_attention_of_megatron_lm(model),
        "num_mtp_layers": model["mtp_num_layers"] or 0,
        "tied_embeddings": not values["untie_embeddings_and_output_weights"],
        "position_embedding": _POSITIONS[values["position_embedding_type"]],
        "seq_length": values["seq_length"],
        "max_positions": values["max_position_embeddings"],
    }


def _graphs_of_megatron_lm(model: Values) -> str:
    implementation, names = model["cuda_graph_impl"], model["cuda_graph_scope"]
    if implementation == "local" and names == ["full_iteration"]:
        return "full_iteration"
    return AXES["cuda_graphs"].joined(names) if implementation == "transformer_engine" else implementation


def _context_of_megatron_lm(model: Values) -> Meaning:
    given, sizes = model["cp_comm_type"], model["hierarchical_context_parallel_sizes"]
    transport = _same(given) if isinstance(given, (list, tuple)) else given
    return {
        "context_parallel": model["context_parallel_size"],
        "context_transport": str(transport).replace("+", "_"),
        "context_groups": sizes,
    }


_COUNTED = AXES["pipeline_split"].parts


def _quantization_of_megatron_lm(model: Values) -> Meaning:
    of_fp8 = f"fp8_{model['fp8_recipe']}".replace("fp8_mxfp8", "mxfp8")
    return {
        "matmul_precision": model["fp4_recipe"] if model["fp4"] else of_fp8 if model["fp8"] else "same",
        "quantized_weights": model["fp8_param"] or model["fp4_param"],
    }


def _features_of_megatron_lm(model: Values, values: Values) -> Meaning:
    """Parts of the architecture; GELU is the tanh approximation in the fused kernel alone."""
    is_exact = model["activation_func"] == "gelu" and not model["bias_activation_fusion"]
    before, after = model["window_size"] or (None, 0)
    return {
        "gated_mlp": model["gated_linear_unit"],
        "mlp_activation": "exact gelu" if is_exact else _activation_of_megatron_lm(model),
        "has_biases": model["add_bias_linear"],
        "qkv_bias": model["add_qkv_bias"] and not model["add_bias_linear"],
        "qk_norm": model["qk_layernorm"] and not model["multi_latent_attention"],
        "rotary_base": values["rotary_base"],
        "sliding_window": None if before is None else before + 1 if after == 0 else -1,
        "full_attention_every": model["window_attn_skip_freq"],
        "attention_sinks": {"vanilla": False, "learnable": True}.get(model["softmax_type"]),
    }


def _activation_of_megatron_lm(model: Values) -> str:
    """gpt-oss' by its parts: the fused kernel has them in another order where there are biases."""
    name, parts = str(model["activation_func"]), (model["glu_linear_offset"], model["activation_func_clamp_value"])
    if name == "quick_gelu" and parts == (1.0, 7.0) and not model["bias_activation_fusion"]:
        return "clamped_swiglu"
    return name if parts == (0.0, None) else f"{name} with {parts}"


def _experts_of_megatron_lm(model: Values) -> Meaning:
    """Experts; their degrees are of no effect without."""
    if model["num_moe_experts"] is None:
        return {"num_experts": None}
    frequency = model["moe_layer_freq"]
    pattern = (
        frequency if isinstance(frequency, list) else [int(n % frequency == 0) for n in range(model["num_layers"])]
    )
    is_forced, dispatcher = model["moe_router_force_load_balancing"], model["moe_token_dispatcher_type"]
    losses = {"none": None, "aux_loss": model["moe_aux_loss_coeff"]}
    score, balancing = model["moe_router_score_function"], model["moe_router_load_balancing_type"]
    modes = [score if model["moe_router_pre_softmax"] else f"{score} of the chosen"]
    modes.append("other auxiliary losses" if model["moe_z_loss_coeff"] else "no other auxiliary loss")
    return {
        "expert_parallel": model["expert_model_parallel_size"],
        "expert_tensor_parallel": model["expert_tensor_parallel_size"],
        "expert_dispatcher": model["moe_flex_dispatcher_backend"] if dispatcher == "flex" else dispatcher,
        "num_experts": model["num_moe_experts"],
        "experts_per_token": model["moe_router_topk"],
        "expert_width": model["moe_ffn_hidden_size"],
        "shared_expert_ffn_hidden_size": model["moe_shared_expert_intermediate_size"],
        "expert_layers": [layer for layer, has_experts in enumerate(pattern) if has_experts],
        "routing": (*modes, model["moe_router_dtype"], BALANCED if is_forced else LEARNED),
        "aux_loss_coefficient": losses.get(balancing, -1),
    }


def _latent_attention_of_megatron_lm(model: Values) -> Meaning:
    """Sizes of latent attention, whose latent vectors have norms; a head's without it."""
    if not model["multi_latent_attention"]:
        return {"key_value_latent_size": None, "head_size": model["kv_channels"]}
    has_norms = model["qk_layernorm"] and model["rope_type"] == "rope"
    return {
        "key_value_latent_size": model["kv_lora_rank"] if has_norms else -1,
        "query_latent_size": model["q_lora_rank"],
        "rotary_head_size": model["qk_pos_emb_head_dim"],
        "value_head_size": model["v_head_dim"],
        "head_size": model["qk_head_dim"] + model["qk_pos_emb_head_dim"],
    }


def _degrees_of_megatron(sizes: Values, values: Values) -> Meaning:
    tensor, pipeline = sizes["tensor_model_parallel_size"], sizes["pipeline_model_parallel_size"]
    data, batch, micro = values["data_parallel_size"], values["global_batch_size"], values["micro_batch_size"]
    return {
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "data_parallel": data,
        "micro_batch_size": micro,
        "grad_accum_steps": batch / (micro * data),
        "global_batch_size": batch,
    }


def _zero_of_megatron_lm(ddp: Values, optimizer: Values) -> int:
    """-1 where DDP and the optimizer disagree."""
    if ddp["use_distributed_optimizer"] != optimizer["use_distributed_optimizer"]:
        return -1
    if ddp["use_megatron_fsdp"]:
        return _SHARDED[ddp["data_parallel_sharding_strategy"]]
    return int(ddp["use_distributed_optimizer"])


def _offloads(optimizer: Values) -> bool:
    return bool(optimizer["optimizer_cpu_offload"] and optimizer["optimizer_offload_fraction"] == 1.0)


def _gradients_of_megatron_lm(model: Values, ddp: Values) -> str:
    """core/distributed/distributed_data_parallel.py: fp32, or the parameters' dtype."""
    return "float32" if ddp["grad_reduce_in_fp32"] else str(model["params_dtype"])


def _bucket_of_megatron_lm(values: Values, model: Values, ddp: Values) -> float | None:
    """DistributedDataParallel counts parameters, and has no buckets without overlap."""
    if values["ddp_bucket_size"] is None or not ddp["overlap_grad_reduce"]:
        return None
    return float(ddp["bucket_size"] * BYTES[_gradients_of_megatron_lm(model, ddp)] / MEBI)


def _recomputation_of_megatron_lm(model: Values) -> Meaning:
    kind, layers = model["recompute_granularity"] or "none", model["recompute_num_layers"]
    is_by_number = model["recompute_method"] == "block"
    return {
        "activation_checkpointing": kind,
        "recomputed_layers_at_once": None if is_by_number else layers,
        "recompute_layers": layers if is_by_number else None,
        "recompute_modules": _RECOMPUTED_MODULES.joined(model["recompute_modules"])
        if kind == "selective"
        else _RECOMPUTED_MODULES.default,
    }


def differences(spec: TrialSpec, understood: Meaning) -> list[str]:
    """Sentences on what the trainer understood otherwise."""
    meant = meaning_of_layout(spec)
    return [
        f"{name} is {value!r}, the layout has {meant[name]!r}"
        for name, value in understood.items()
        if meant[name] != value
    ]
