"""Meaning of an export to torchtitan and to accelerate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from search_spaces.layouts.layout import AXES
from search_spaces.routing import BALANCED, LEARNED

Values = Mapping[str, Any]
Meaning = dict[str, Any]

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
RECOMPUTED_MODULES = AXES["recompute_modules"]
ROUTING = ("softmax of the chosen", "no other auxiliary loss", "fp32")
"""Weights of a token's experts, what balances them, and the arithmetic of their logits."""


def same(values: Any) -> Any:
    """The value that all of them have; the sorted values where they differ."""
    found = sorted(set(values))
    return found[0] if len(found) == 1 else found


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
        "precision": PRECISIONS[training["mixed_precision_param"]] if training["dtype"] == "float32" else "differs",
        "gradient_dtype": PRECISIONS[training["mixed_precision_reduce"]],
        "activation_checkpointing": recomputation,
        "recompute_layers": (values["activation_checkpoint"] or {}).get("layers"),
        "recompute_modules": "ops" if recomputation == "selective" else RECOMPUTED_MODULES.default,
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
    of_layers = same(str(recipe) for name, recipe in recipes.items() if name not in kept)
    if of_layers == "None" or {*kept.values()} != {None}:
        return "same" if of_layers == "None" else "differs"
    return of_layers if of_layers == "mxfp8" else f"fp8_{of_layers}"


def _model_of_torchtitan(model: Values, classes: Values) -> Meaning:
    """llama3 or qwen3 by the attention and the MLP of a layer, where all are alike."""
    attention = _same_config([layer["attention"] for layer in model["layers"]])
    return {
        "num_layers": len(model["layers"]),
        "hidden_size": same([model["dim"], attention["dim"], model["norm"]["normalized_shape"]]),
        "num_attention_heads": attention["n_heads"],
        "num_key_value_heads": attention["n_kv_heads"],
        **_mlp_of_torchtitan([layer["feed_forward"] for layer in model["layers"] if layer["feed_forward"]]),
        "vocab_size": same([model["vocab_size"], model["lm_head"]["out_features"]]),
        "tied_embeddings": model["enable_weight_tying"],
        "has_biases": attention["wo"]["bias"],
        "mlp_activation": "silu",
        "qkv_bias": attention["qkv_linear"]["wqkv"]["bias"],
        "qk_norm": (attention["qk_norm"] or {}).get("normalized_shape") == attention["rope"]["dim"],
        "head_size": same([attention["qkv_linear"]["head_dim"], attention["rope"]["dim"]]),
        "rotary_base": attention["rope"]["theta"],
        "norm": classes["norm"].lower(),
        "attention_kernel": same(
            {"FlexAttention": "flex", "VarlenAttention": "flash"}[n] for n in classes["attention"]
        ),
        "position_embedding": same(
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
        "ffn_hidden_size": same([mlp["w1"]["out_features"], mlp["w2"]["in_features"]]),
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
        "num_experts": same([moe["num_experts"], router["num_experts"], experts["num_experts"]]),
        "experts_per_token": same([router["top_k"], moe["routed_experts"]["token_dispatcher"]["top_k"]]),
        "expert_width": experts["hidden_dim"],
        "shared_expert_ffn_hidden_size": shared and same([shared["w1"]["out_features"], shared["w2"]["in_features"]]),
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
        "precision": same([precision, *(PRECISIONS[dtype] for dtype in policy or ())]),
        "torch_compile": values["dynamo"]["backend"] == "INDUCTOR" and values["dynamo"]["use_regional_compilation"],
    }


def _zero_of_accelerate(fsdp: Values | None) -> int:
    """-1 for FSDP 1, which has other strategies."""
    if fsdp is None:
        return 0
    return (3 if fsdp["reshards"] else 2) if fsdp["version"] == 2 else -1


_PRECISION_OF_ACCELERATE = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
