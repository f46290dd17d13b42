"""Options of Megatron-LM for experts, latent attention and further tokens. Standard library only.

Names and meanings: megatron/core/transformer/transformer_config.py of core_v0.16.1 and of main (2026-08), whose fields
Megatron-LM's parser turns into options.
"""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.layouts.layout import FUSED_DISPATCHERS, Layout
from search_spaces.model_shape import ModelShape

SWIGLU_OFFSET, SWIGLU_LIMIT = 1.0, 7.0
"""Constants of `clamped_swiglu`; openai/gpt-oss, gpt_oss/torch/model.py, swiglu."""

ROUTER_OPTIONS = (("--moe-router-load-balancing-type", "none"), ("--moe-router-dtype", "fp32"))
"""Routing as Parlay's engines have it without a loss that balances experts: logits in fp32. The softmax of the chosen
logits is Megatron's default."""
FLEX = "flex"
"""Megatron's dispatcher by a library."""
GROUPED_PRODUCTS = "--moe-grouped-gemm"
"""Products of all experts at once, by Transformer Engine; without it, or without Transformer Engine, one by one."""


def expert_options(model: ModelShape, layout: Layout) -> list[Sequence[str]]:
    """Experts and their ranks. Without the option for it Megatron has `tensor_parallel` ranks split an expert."""
    if model.num_experts is None:
        return []
    shared, layers = model.shared_expert_ffn_hidden_size, moe_layer_freq(model)
    return [
        ("--expert-model-parallel-size", str(layout.expert_parallel)),
        ("--expert-tensor-parallel-size", str(layout.expert_tensor_parallel)),
        ("--num-experts", str(model.num_experts)),
        ("--moe-router-topk", str(model.experts_per_token)),
        ("--moe-ffn-hidden-size", str(model.expert_width)),
        *([] if shared is None else [("--moe-shared-expert-intermediate-size", str(shared))]),
        *([] if isinstance(layers, int) else [("--moe-layer-freq", _runs(layers))]),
        *_router_options(model),
        *dispatcher_options(layout),
        *([(GROUPED_PRODUCTS,)] if layout.precision != "fp32" else []),
        # Grouped products with biases assert it (megatron/core/transformer/moe/experts.py, TEGroupedMLP).
        *([("--no-bias-dropout-fusion",)] if model.has_biases else []),
    ]


def dispatcher_options(layout: Layout) -> list[Sequence[str]]:
    """Megatron's `flex` has a backend of its own for each library."""
    word = layout.expert_dispatcher
    if word not in FUSED_DISPATCHERS:
        return [("--moe-token-dispatcher-type", word)]
    return [("--moe-token-dispatcher-type", FLEX), ("--moe-flex-dispatcher-backend", word)]


def _router_options(model: ModelShape) -> tuple[Sequence[str], ...]:
    """Routing, with a loss that balances experts over the tokens of a micro-batch if the model has one."""
    if model.aux_loss_coefficient is None:
        return ROUTER_OPTIONS
    (balancing, _), *others = ROUTER_OPTIONS
    return (balancing, "aux_loss"), ("--moe-aux-loss-coeff", repr(model.aux_loss_coefficient)), *others


def moe_layer_freq(model: ModelShape) -> int | list[int]:
    """Megatron's `moe_layer_freq`: 1 for each layer that has experts, 0 for one with an MLP; 1 where all have them."""
    layers = [int(model.has_experts(layer)) for layer in range(model.num_layers)]
    return 1 if all(layers) else layers


def _runs(pattern: Sequence[int]) -> str:
    """`([0]*3+[1]*58)`: the pattern as the option has it, which contains no space."""
    runs: list[list[int]] = []
    for has_experts in pattern:
        if runs and runs[-1][0] == has_experts:
            runs[-1][1] += 1
        else:
            runs.append([has_experts, 1])
    return f"({'+'.join(f'[{value}]*{count}' for value, count in runs)})"


def latent_options(model: ModelShape) -> list[Sequence[str]]:
    """Latent attention. Its norms are those of --qk-layernorm, and its fused rotary kernel is YaRN's alone."""
    if model.key_value_latent_size is None:
        return []
    query, rotated, values = model.query_latent_size, model.rotary_head_size or 0, model.value_head_size
    return [
        ("--multi-latent-attention",),
        *([] if query is None else [("--q-lora-rank", str(query))]),
        ("--kv-lora-rank", str(model.key_value_latent_size)),
        ("--qk-head-dim", str(model.head_size - rotated)),
        ("--qk-pos-emb-head-dim", str(rotated)),
        ("--v-head-dim", str(values)),
        ("--rope-type", "rope"),
        ("--no-rope-fusion",),
    ]


def further_token_options(model: ModelShape) -> list[Sequence[str]]:
    """Layers for further tokens, whose losses Megatron adds with a weight of 0.1 by default."""
    return [("--mtp-num-layers", str(model.num_mtp_layers))] if model.num_mtp_layers else []


def clamped_swiglu_options(model: ModelShape) -> list[Sequence[str]]:
    """gpt-oss' activation, for a gated MLP and for experts."""
    if model.mlp_activation != "clamped_swiglu":
        return []
    return [
        ("--quick-geglu",),
        ("--glu-linear-offset", str(SWIGLU_OFFSET)),
        ("--activation-func-clamp-value", str(SWIGLU_LIMIT)),
    ]
