"""Meaning of an export to its trainer, and of the layout, by the same names.

A bucket is in MiB: what the trainer counts, parameters or elements, times the bytes of one in the dtype that it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from search_spaces.engines import ACCELERATE, ENGINE_PROFILES, TORCHTITAN
from search_spaces.layouts.layout import AXES
from search_spaces.routing import BALANCED, LEARNED, Routing
from trials.trial import TrialSpec

Values = Mapping[str, Any]
Meaning = dict[str, Any]

_PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_RECOMPUTED_MODULES = AXES["recompute_modules"]
_ROUTING = ("softmax of the chosen", "no other auxiliary loss", "fp32")
"""Weights of a token's experts, what balances them, and the arithmetic of their logits."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MEBI = 2**20
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
        "head_size": model.head_size,
        "mlp_activation": model.mlp_activation,
        "max_positions": model.seq_length,
        "expert_width": model.expert_width if model.num_experts else None,
        "expert_layers": [layer for layer in range(model.num_layers) if model.has_experts(layer)],
        "routing": (*_ROUTING, Routing.of(spec.measure.routing).kind) if model.num_experts else None,
        "dropout": (0.0, 0.0),
        "recomputed_layers_at_once": 1 if recomputes and layout.recompute_layers is None else None,
        "is_pipelined": layout.pipeline_parallel > 1,
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
        "gradient_dtype": _PRECISIONS[_gradients_of_megatron_lm(model, ddp)],
        "moment_dtype": _same(_MOMENTS[optimizer[name]] for name in ("exp_avg_dtype", "exp_avg_sq_dtype")),
        **_quantization_of_megatron_lm(model),
        "precision": _same(_PRECISIONS[config["params_dtype"]] for config in (model, optimizer)),
        **_recomputation_of_megatron_lm(model),
        "tensor_parallel_overlap": model["tp_comm_overlap"],
        "expert_overlap": model["overlap_moe_expert_parallel_comm"],
        "cuda_graphs": _graphs_of_megatron_lm(model),
        "data_parallel_replicas": ddp["num_distributed_optimizer_instances"],
        "pipeline_split": "+".join(part for part in _COUNTED if model[f"account_for_{part}_in_pipeline_split"])
        or "own",
        "first_stage_layers": model["num_layers_in_first_pipeline_stage"],
        "last_stage_layers": model["num_layers_in_last_pipeline_stage"],
        "offloaded_layers": model["cpu_offloading_num_layers"] if model["cpu_offloading"] else 0,
        "attention_kernel": {"flash": "flash", "fused": "flash", "unfused": "math"}.get(model["attention_backend"]),
        "dropout": (model["attention_dropout"], model["hidden_dropout"]),
        **_sizes_of_megatron(model),
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


def _graphs_of_megatron_lm(model: Values) -> str | None:
    """main has a name of its own for the parts of layers, and one for a graph of all passes."""
    implementation, names = model["cuda_graph_impl"], model.get("cuda_graph_modules", model["cuda_graph_scope"])
    if implementation == "none":
        return "none"
    if implementation == "full_iteration" or names == ["full_iteration"]:
        return "full_iteration"
    return AXES["cuda_graphs"].joined(names) if implementation == "transformer_engine" else implementation


def _context_of_megatron_lm(model: Values) -> Meaning:
    given, sizes = model["cp_comm_type"], model["hierarchical_context_parallel_sizes"]
    transport = _same(given) if isinstance(given, (list, tuple)) else given
    return {
        "context_parallel": model["context_parallel_size"],
        "context_transport": str(transport).replace("+", "_"),
        "context_inner": sizes[0] if sizes else AXES["context_inner"].default,
    }


_COUNTED = AXES["pipeline_split"].parts


def _quantization_of_megatron_lm(model: Values) -> Meaning:
    of_fp8 = f"fp8_{model['fp8_recipe']}".replace("fp8_mxfp8", "mxfp8")
    ends = [model[f"num_layers_at_{end}_in_bf16"] for end in ("start", "end")]
    return {
        "matmul_precision": model["fp4_recipe"] if model["fp4"] else of_fp8 if model["fp8"] else "same",
        "layers_in_16_bits": _same(ends) if model["first_last_layers_bf16"] else 0,
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


def _sizes_of_megatron(sizes: Values) -> Meaning:
    return {name: sizes[name] for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")}


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
    """core/distributed/distributed_data_parallel.py: fp32, or the parameters' dtype. From core_v0.17.0 on Megatron-FSDP
    has its own setting, which is the parameters' dtype where it is None (param_and_grad_buffer.py)."""
    if ddp["use_megatron_fsdp"] and "megatron_fsdp_main_grads_dtype" in ddp:
        return str(ddp["megatron_fsdp_main_grads_dtype"] or model["params_dtype"])
    return "float32" if ddp["grad_reduce_in_fp32"] else str(model["params_dtype"])


def _bucket_of_megatron_lm(values: Values, model: Values, ddp: Values) -> float | None:
    """DistributedDataParallel counts parameters, and has no buckets without overlap."""
    if values["ddp_bucket_size"] is None or not ddp["overlap_grad_reduce"]:
        return None
    return float(ddp["bucket_size"] * _BYTES[_gradients_of_megatron_lm(model, ddp)] / _MEBI)


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


def _of_deepspeed_alone(config: Values) -> Meaning:
    batch = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    return {
        "deepspeed_batch": tuple(config[name] for name in batch),
        "deepspeed_zero_stage": config["zero_config"]["stage"],
        "deepspeed_precision": _PRECISIONS[config["model_dtype"]],
        "gradient_dtype": _PRECISIONS[config["gradient_dtype"]],
        "offload": _offload_of_deepspeed(config),
    }


def _offload_of_deepspeed(config: Values) -> str:
    device = (config["zero_config"]["offload_optimizer"] or {}).get("device", "none")
    return {"cpu": "optimizer", "none": "none"}.get(device, device)


def _bucket_of_deepspeed(config: Values) -> float | None:
    """Elements of the dtype that is sent; None for DeepSpeed's own number, at most that of the model, which is set for
    reductions alone."""
    if "allgather_bucket_size" not in config["_param_dict"]["zero_optimization"]:
        return None
    elements = config["zero_config"]["reduce_bucket_size"]
    return float(elements * _BYTES[config["sent_dtype"]] / _MEBI)


def of_deepspeed(values: Values) -> Meaning:
    """DeepSpeed's own configuration; degrees, model and recomputation are the user's program's."""
    overlap = {"overlap_comm": values["zero_config"]["overlap_comm"]}
    return {**_of_deepspeed_alone(values), **overlap, "bucket_mib": _bucket_of_deepspeed(values)}


def of_torchtitan(values: Values) -> Meaning:
    """torchtitan by its configuration, as torchtitan/trainer.py and torchtitan/distributed understand it."""
    parallel, training, classes = values["parallelism"], values["training"], values["classes"]
    replicas, shards = parallel["data_parallel_replicate_degree"], parallel["data_parallel_shard_degree"]
    tensor, stages = parallel["tensor_parallel_degree"], parallel["pipeline_parallel_degree"]
    local, batch = training["local_batch_size"], training["global_batch_size"]
    micro = parallel["pipeline_parallel_microbatch_size"] if stages > 1 else local
    recomputation = _RECOMPUTATION_OF_TORCHTITAN[classes["recomputation"]]
    return {
        "tensor_parallel": tensor,
        "pipeline_parallel": stages,
        "data_parallel": replicas * shards,
        "data_parallel_replicas": replicas if shards * parallel["context_parallel_degree"] > 1 else 1,
        "context_parallel": parallel["context_parallel_degree"],
        "micro_batch_size": micro,
        # In a pipeline those of one pass through it.
        "grad_accum_steps": local / micro if stages > 1 else batch / (local * replicas * shards),
        "global_batch_size": batch,
        "is_pipelined": stages > 1,
        "sequence_parallel": parallel["enable_sequence_parallel"] and tensor > 1,
        "virtual_pipeline_stages": len(parallel["module_fqns_per_model_part"] or [0]) // stages,
        "pipeline_schedule": _SCHEDULES_OF_TORCH[parallel["pipeline_parallel_schedule"]] if stages > 1 else "none",
        "zero_stage": _zero_of_torchtitan(parallel),
        "offload": "all" if training["enable_cpu_offload"] else "none",
        "precision": _PRECISIONS[training["mixed_precision_param"]] if training["dtype"] == "float32" else "differs",
        "gradient_dtype": _PRECISIONS[training["mixed_precision_reduce"]],
        "activation_checkpointing": recomputation,
        "recompute_layers": (values["activation_checkpoint"] or {}).get("layers"),
        "recompute_modules": "ops" if recomputation == "selective" else _RECOMPUTED_MODULES.default,
        "torch_compile": values["compile"]["enable"],
        "tensor_parallel_overlap": values["compile"]["enable_async_tensor_parallel"],
        "matmul_precision": _products_of_torchtitan(classes["products"]),
        **_model_of_torchtitan(values["model_spec"]["model"], classes),
        **_experts_of_torchtitan(values["model_spec"]["model"], parallel, values["debug"]["moe_force_load_balance"]),
        "seq_length": training["seq_len"],
    }


_RECOMPUTATION_OF_TORCHTITAN = {
    "NoneType": "none",
    "SelectiveAC": "selective",
    "FullAC": "full",
    "FirstLayersAC": "full",
}
_SCHEDULES_OF_TORCH = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved_1f1b",
    "ZBVZeroBubble": "zbv",
    "DualPipeV": "dualpipev",
}


def _zero_of_torchtitan(parallel: Values) -> int:
    """torchtitan/distributed/fsdp.py: by default weights are resharded after the forward pass unless there is a
    pipeline."""
    if parallel["data_parallel_shard_degree"] * parallel["context_parallel_degree"] == 1:
        return 0
    policy, is_pipeline = parallel["fsdp_reshard_after_forward"], parallel["pipeline_parallel_degree"] > 1
    return 3 if policy == "always" or (policy == "default" and not is_pipeline) else 2


def _products_of_torchtitan(recipes: Values) -> str:
    """Recipe of all linear layers but the head and routers, which have none."""
    kept = {name: recipe for name, recipe in recipes.items() if name == "lm_head" or name.endswith(".router.gate")}
    of_layers = _same(str(recipe) for name, recipe in recipes.items() if name not in kept)
    if of_layers == "None" or {*kept.values()} != {None}:
        return "same" if of_layers == "None" else "differs"
    return of_layers if of_layers == "mxfp8" else f"fp8_{of_layers}"


def _model_of_torchtitan(model: Values, classes: Values) -> Meaning:
    """llama3 or qwen3 by the attention and the MLP of a layer, where all are alike."""
    attention = _same_config([layer["attention"] for layer in model["layers"]])
    return {
        "num_layers": len(model["layers"]),
        "hidden_size": _same([model["dim"], attention["dim"], model["norm"]["normalized_shape"]]),
        "num_attention_heads": attention["n_heads"],
        "num_key_value_heads": attention["n_kv_heads"],
        **_mlp_of_torchtitan([layer["feed_forward"] for layer in model["layers"] if layer["feed_forward"]]),
        "vocab_size": _same([model["vocab_size"], model["lm_head"]["out_features"]]),
        "tied_embeddings": model["enable_weight_tying"],
        "has_biases": attention["wo"]["bias"],
        "mlp_activation": "silu",
        "qkv_bias": attention["qkv_linear"]["wqkv"]["bias"],
        "qk_norm": (attention["qk_norm"] or {}).get("normalized_shape") == attention["rope"]["dim"],
        "head_size": _same([attention["qkv_linear"]["head_dim"], attention["rope"]["dim"]]),
        "rotary_base": attention["rope"]["theta"],
        "norm": classes["norm"].lower(),
        "attention_kernel": _same(
            {"FlexAttention": "flex", "VarlenAttention": "flash"}[n] for n in classes["attention"]
        ),
        "position_embedding": _same(
            {"ComplexRoPE": "rotary", "CosSinRoPE": "rotary"}[name] for name in classes["positions"]
        ),
        "max_positions": attention["rope"]["max_seq_len"],
    }


def _mlp_of_torchtitan(mlps: Sequence[Values]) -> Meaning:
    """The MLP of layers without experts; nothing where all have some."""
    if not mlps:
        return {}
    mlp = _same_config(mlps)
    return {
        "ffn_hidden_size": _same([mlp["w1"]["out_features"], mlp["w2"]["in_features"]]),
        "gated_mlp": mlp["w3"]["out_features"] == mlp["w1"]["out_features"],
        "linear_biases": None if not any(mlp[name]["bias"] for name in ("w1", "w2", "w3")) else True,
    }


def _experts_of_torchtitan(model: Values, parallel: Values, is_forced: bool) -> Meaning:
    """Experts and their ranks: tensor-parallel ranks split them where none distributes them."""
    expert_layers = [number for number, layer in enumerate(model["layers"]) if layer["moe"]]
    if not expert_layers:
        return {"num_experts": None, "expert_parallel": parallel["expert_parallel_degree"]}
    moe = _same_config([model["layers"][number]["moe"] for number in expert_layers])
    router, experts, shared = moe["router"], moe["routed_experts"]["inner_experts"], moe["shared_experts"]
    is_distributed = parallel["expert_parallel_degree"] > 1
    score = f"{router['score_func']} of the chosen" if router["route_norm"] else router["score_func"]
    is_plain = moe["load_balance_coeff"] is None and router["route_scale"] == 1 and not router["gate"]["bias"]
    return {
        "expert_parallel": parallel["expert_parallel_degree"],
        "expert_tensor_parallel": 1 if is_distributed else parallel["tensor_parallel_degree"],
        "num_experts": _same([moe["num_experts"], router["num_experts"], experts["num_experts"]]),
        "experts_per_token": _same([router["top_k"], moe["routed_experts"]["token_dispatcher"]["top_k"]]),
        "expert_width": experts["hidden_dim"],
        "shared_expert_ffn_hidden_size": shared and _same([shared["w1"]["out_features"], shared["w2"]["in_features"]]),
        "expert_layers": expert_layers,
        "routing": (
            score,
            "no other auxiliary loss" if is_plain else "differs",
            "fp32",
            BALANCED if is_forced else LEARNED,
        ),
    }


def _same_config(layers: Sequence[Values]) -> Values:
    """The first layer, without the functions that draw weights; KeyError where another is unlike it."""
    first, *others = (_without_weights(layer) for layer in layers)
    if any(other != first for other in others):
        raise KeyError("layers differ")
    found: Values = first
    return found


def _without_weights(config: Any) -> Any:
    if isinstance(config, Mapping):
        return {name: _without_weights(inner) for name, inner in config.items() if name != "param_init"}
    return config


def of_accelerate(values: Values) -> Meaning:
    """accelerate by what a script finds in its environment; batch and kernel are the script's."""
    fsdp, sizes = values["fsdp"], values["sizes"]
    degrees = {name: sizes[f"{name}_size"] if sizes else 1 for name in ("dp_replicate", "tp", "cp", "sp")}
    shards = sizes["dp_shard_size"] if sizes else values["num_processes"]
    precision = _PRECISION_OF_ACCELERATE[values["mixed_precision"]]
    policy = fsdp["policy"] if fsdp else None
    return {
        "num_nodes": values["num_machines"],
        "tensor_parallel": degrees["tp"] * degrees["cp"] * degrees["sp"],
        "data_parallel": degrees["dp_replicate"] * shards,
        "data_parallel_replicas": degrees["dp_replicate"],
        "zero_stage": _zero_of_accelerate(fsdp),
        "offload": "none" if fsdp is None or fsdp["offload"] == "OffloadPolicy" else fsdp["offload"],
        "activation_checkpointing": "full" if fsdp and fsdp["recomputes"] else "none",
        "precision": _same([precision, *(_PRECISIONS[dtype] for dtype in policy or ())]),
        "torch_compile": values["dynamo"]["backend"] == "INDUCTOR" and values["dynamo"]["use_regional_compilation"],
    }


def _zero_of_accelerate(fsdp: Values | None) -> int:
    """-1 for FSDP 1, which has other strategies."""
    if fsdp is None:
        return 0
    return (3 if fsdp["reshards"] else 2) if fsdp["version"] == 2 else -1


_PRECISION_OF_ACCELERATE = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}


MEANINGS: Mapping[str, Callable[[Values], Meaning]] = {
    "deepspeed": of_deepspeed,
    TORCHTITAN: of_torchtitan,
    ACCELERATE: of_accelerate,
}


def differences(spec: TrialSpec, understood: Meaning) -> list[str]:
    """Sentences on what the trainer understood otherwise."""
    meant = meaning_of_layout(spec)
    return [
        f"{name} is {value!r}, the layout has {meant[name]!r}"
        for name, value in understood.items()
        if meant[name] != value
    ]
