"""Rules of Megatron-LM beside those of its core: what does not go together. Standard library only.

megatron/training/arguments.py, validate_args(), and megatron/core/transformer/transformer_config.py, __post_init__, of
core_v0.16.1 and of main (2026-08).
"""

from __future__ import annotations

from search_spaces.layouts.layout import FUSED_DISPATCHERS, INNER_CONTEXT
from search_spaces.layouts.settings import Settings
from search_spaces.rules.engine_rules import NO_MLP, sharded_replicas, zero_in_pipeline
from search_spaces.rules.rule import Clashes, Rule, at_least, clashes, has_part, is_given, is_not

_ON_HOST = "--optimizer-cpu-offload needs the precision-aware distributed optimizer: zero_stage 1 and bf16"
_OVERLAPS = "Megatron-LM overlaps collectives of sequence parallelism with Transformer Engine's products in 16 bits"
_IN_4_OR_8_BITS = "--fp8-param-gather and --fp4-param-gather need the distributed optimizer or Megatron-FSDP"
_ROTARY = "Megatron-LM has latent attention and layers for further tokens with rotary positions alone"


_is_of_modules = is_not("none", "full_iteration")


def _registers_segments(settings: Settings) -> bool:
    """True if NCCL registers buffers in graphs whose segments may be mapped elsewhere."""
    allocators = (settings.env.get(name) or "" for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    has_segments = any("expandable_segments:True" in given for given in allocators)
    return has_segments and settings.env.get("NCCL_GRAPH_REGISTER") != "0"


_BIASED: Clashes = {"model.num_experts": is_given, "model.linear_biases": (True,)}
TOGETHER: tuple[Rule, ...] = (
    # -- sharding, offload and types
    # ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP, which has no pipeline.
    zero_in_pipeline("Megatron-LM supports zero_stage 0 and 1 in a pipeline"),
    sharded_replicas,
    clashes("offload", {"zero_stage": (0, 2, 3)}, _ON_HOST),
    clashes("offload", {"precision": ("fp32", "fp16")}, _ON_HOST),
    clashes(
        "data_parallel_replicas",
        {"zero_stage": (2, 3)},
        "several instances of Megatron-LM's distributed optimizer need zero_stage 1"
        " (megatron/core/parallel_state.py, initialize_model_parallel)",
    ),
    clashes("tensor_parallel_overlap", {"sequence_parallel": (False,)}, _OVERLAPS),
    clashes("tensor_parallel_overlap", {"precision": ("fp32",)}, _OVERLAPS),
    clashes(
        "recompute_modules",
        {"matmul_precision": ("fp8_delayed",), "activation_checkpointing": ("selective",)},
        "delayed scaling recomputes neither layernorm nor moe_act",
        values=has_part("layernorm", "moe_act"),
        fix="leave them out, or set matmul_precision to fp8_tensorwise",
    ),
    clashes("quantized_weights", {"zero_stage": (0,)}, _IN_4_OR_8_BITS),
    clashes(
        "quantized_weights",
        {"offload": ("optimizer",), "matmul_precision": is_not("fp8_delayed")},
        "--optimizer-cpu-offload takes 8-bit weights of delayed scaling only",
    ),
    clashes("gradients_in_bf16", {"precision": ("fp32", "fp16")}, "--grad-reduce-in-bf16 is for weights in bf16"),
    clashes(
        "moment_dtype",
        {"zero_stage": (0, 2, 3)},
        "moments of other types need the precision-aware distributed optimizer: zero_stage 1",
    ),
    # -- context parallelism: transformer_engine/pytorch/attention/dot_product_attention
    Rule(
        ("model.seq_length", "context_parallel", "tensor_parallel"),
        lambda length, context, tensor: context > 1 and length // context % tensor,
        "tensor-parallel ranks split the positions of a context-parallel rank",
        "use a smaller context_parallel or tensor_parallel",
        {"sequence_parallel": (True,)},
        "context_parallel",
    ),
    *(
        Rule(
            ("context_transport", "context_parallel", heads, "tensor_parallel"),
            lambda transport, context, count, tensor: (
                count // tensor % {"a2a": context, "a2a_p2p": INNER_CONTEXT}.get(transport, 1)
            ),
            "all-to-alls give each rank of their group some of the heads",
            "use a smaller context_parallel or tensor_parallel, or context_transport p2p",
        )
        for heads in ("model.num_attention_heads", "model.num_key_value_heads")
    ),
    clashes(
        "context_transport",
        {"context_parallel": lambda count: count % INNER_CONTEXT or count == INNER_CONTEXT},
        "a2a_p2p has several inner groups of two: context_parallel is even, and 4 or more",
        values=("a2a_p2p",),
        fix="use another context_parallel, or context_transport a2a",
    ),
    clashes(
        "context_parallel",
        {"attention_kernel": is_not("flash")},
        "Transformer Engine's unfused attention has no context parallelism",
    ),
    clashes(
        "context_parallel",
        {"model.attention_sinks": (True,), "context_transport": ("p2p", "all_gather", "a2a_p2p")},
        "Transformer Engine has sinks with all-to-alls alone",
    ),
    clashes(
        "context_parallel",
        {"model.sliding_window": is_given, "context_transport": ("p2p", "a2a_p2p")},
        "Transformer Engine's rings have no sliding windows",
    ),
    # -- experts, latent attention, further tokens
    clashes(
        "expert_dispatcher",
        {"precision": ("fp32", "fp16")},
        "DeepEP and HybridEP send tokens in bf16 (megatron/core/transformer/moe/fused_a2a.py)",
        values=FUSED_DISPATCHERS,
    ),
    clashes(
        "expert_tensor_parallel",
        _BIASED,
        "Megatron-LM has experts with biases at expert_tensor_parallel 1 alone",
        values=at_least(2),
    ),
    clashes(
        "model.shared_expert_ffn_hidden_size",
        _BIASED,
        "Megatron-LM has shared experts without biases (transformer/moe/shared_experts.py)",
    ),
    clashes(
        "model.activation",
        _BIASED,
        "Megatron-LM's fused GELU adds a bias, and its experts have none of these (transformer/mlp.py)",
        values=("gelu",),
        fix="set model.linear_biases to false",
    ),
    clashes("model.key_value_latent_size", {"model.position_embedding": ("learned",)}, _ROTARY),
    clashes("model.num_mtp_layers", {"model.position_embedding": ("learned",)}, _ROTARY),
    # -- CUDA graphs of parts of layers, or of all passes
    clashes(
        "cuda_graphs",
        {"zero_stage": (2, 3)},
        "a graph replays fixed addresses, which Megatron-FSDP of core_v0.16.1 does not keep",
    ),
    clashes(
        "cuda_graphs",
        {"activation_checkpointing": ("full",)},
        "layers that are computed again as a whole are captured by full_iteration alone",
        values=_is_of_modules,
    ),
    clashes(
        "cuda_graphs",
        {},
        "with expandable_segments:True and without NCCL_GRAPH_REGISTER=0 NCCL registers buffers in graphs whose"
        " segments may be mapped elsewhere (megatron/training/arguments.py asserts it)",
        values=_is_of_modules,
        fix="add NCCL_GRAPH_REGISTER: 0 to space.env, or set cuda_graphs to none",
        only={"of_trial": _registers_segments},
    ),
    clashes(
        "cuda_graphs",
        NO_MLP,
        "mlp is captured in layers without experts",
        values=has_part("mlp"),
        fix="use moe_router, or set cuda_graphs to none",
    ),
    # megatron/core/transformer/transformer_layer.py says when the norm before experts is computed again.
    Rule(
        ("cuda_graphs", "recompute_modules", "expert_dispatcher"),
        lambda graphs, recomputed, dispatcher: (
            has_part("moe_router")(graphs)
            and has_part("layernorm")(recomputed)
            and not (has_part("moe_preprocess")(graphs) and dispatcher == "alltoall")
        ),
        "a graph returns the norm before its router, so that Megatron-LM keeps it, unless the graph goes on to what"
        " all-to-alls send",
        "recompute other modules, or set cuda_graphs to none",
    ),
    clashes(
        "cuda_graphs",
        {},
        "moe_preprocess is captured together with moe_router",
        values=lambda word: has_part("moe_preprocess")(word) and not has_part("moe_router")(word),
        fix="add moe_router",
    ),
    clashes(
        "cuda_graphs",
        {"model.num_experts": (None,)},
        "moe_router and moe_preprocess are parts of layers with experts",
        values=has_part("moe_router", "moe_preprocess"),
        fix="use mlp",
    ),
    clashes(
        "cuda_graphs",
        {"activation_checkpointing": ("selective",), "recompute_modules": has_part("moe")},
        "recomputed experts include the router, and a graph captures all of what is recomputed or nothing",
        values=has_part("moe_router"),
    ),
    # Experts in a graph of all passes are the fused ones of Transformer Engine (main, megatron/core/transformer/moe/
    # experts.py, _is_fused_impl_supported).
    clashes(
        "cuda_graphs",
        {"model.num_experts": is_given, "expert_dispatcher": is_not("hybridep")},
        "the host waits for the number of each expert's tokens, but for HybridEP's, which has room for a fixed one"
        " (--moe-expert-rank-capacity-factor, from core_v0.18.0 on)",
        values=("full_iteration",),
        fix="set expert_dispatcher to hybridep, or cuda_graphs to none",
    ),
    clashes(
        "cuda_graphs",
        {"model.num_experts": is_given, "expert_tensor_parallel": at_least(2)},
        "experts that a graph captures are not split",
        values=("full_iteration",),
        fix="set expert_tensor_parallel to 1, or cuda_graphs to none",
    ),
    clashes(
        "cuda_graphs",
        {"model.num_experts": is_given, "model.activation": is_not("silu", "clamped_swiglu")},
        "experts that a graph captures have silu or clamped_swiglu with a gate",
        values=("full_iteration",),
        fix="capture attn, moe_router and moe_preprocess, or set cuda_graphs to none",
    ),
)
