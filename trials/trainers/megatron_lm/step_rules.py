"""Rules of how Megatron-LM carries out a step: overlapped all-to-alls of experts, CUDA graphs. Standard library only.

megatron/core/transformer/transformer_config.py, __post_init__, of core_v0.16.1 and of main (2026-08). main allows
offloaded layers in a graph of all passes, and one layer for further tokens beside overlapped all-to-alls without a
pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import RuleViolation


class _Finding(NamedTuple):
    """A setting that a value of an axis does not go with, if `is_refused`."""

    is_refused: bool
    other: str
    rule: str
    fix: str


def expert_overlap(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """All-to-alls that another micro-batch's computation hides."""
    if layout.expert_overlap:
        yield from _violations("expert_overlap", "true", "false", _of_expert_overlap(layout, model))


def cuda_graphs(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """CUDA graphs of parts of layers, or of all passes."""
    if layout.cuda_graphs != "none":
        findings = (*_of_every_graph(layout), *_of_captured_modules(layout, model), *_of_whole_graph(layout, model))
        yield from _violations("cuda_graphs", layout.cuda_graphs, "none", findings)


def _violations(name: str, value: str, without: str, findings: tuple[_Finding, ...]) -> Iterator[RuleViolation]:
    for is_refused, other, rule, fix in findings:
        if is_refused:
            yield RuleViolation(name, f"{name} is {value} with {other}", rule, f"{fix}, or set {name} to {without}")


def _of_expert_overlap(layout: Layout, model: ModelShape) -> tuple[_Finding, ...]:
    stages, chunks, layers = layout.pipeline_parallel, layout.virtual_pipeline_stages, model.num_mtp_layers
    return (
        _Finding(
            stages > 1 and chunks == 1,
            f"pipeline_parallel {stages} and virtual_pipeline_stages {chunks}",
            "in a pipeline Megatron-LM overlaps all-to-alls with another chunk's computation",
            "set virtual_pipeline_stages to 2 or more",
        ),
        _Finding(
            layout.activation_checkpointing == "full" or "moe" in layout.modules_recomputed,
            f"activation_checkpointing {layout.activation_checkpointing} of experts",
            "the backward pass of experts whose all-to-alls are overlapped does not compute them again",
            "recompute modules other than moe",
        ),
        _Finding(
            layout.precision == "fp32",
            f"precision {layout.precision}",
            "Megatron-LM overlaps all-to-alls in bf16 and fp16",
            "set precision to bf16",
        ),
        _Finding(
            layout.expert_dispatcher == "allgather",
            f"expert_dispatcher {layout.expert_dispatcher}",
            "Megatron-LM overlaps the all-to-alls of the other dispatchers",
            "set expert_dispatcher to alltoall",
        ),
        _Finding(
            layout.zero_stage > 1,
            f"zero_stage {layout.zero_stage}",
            "overlap takes layers apart, and Megatron-FSDP of core_v0.16.1 gathers the weights of whole layers",
            "set zero_stage to 1",
        ),
        _Finding(
            layers > 1 or (layers == 1 and stages == 1),
            f"model.num_mtp_layers {layers} and pipeline_parallel {stages}",
            "Megatron-LM overlaps all-to-alls beside one layer for further tokens at most, and that in a pipeline",
            "use a pipeline and one such layer",
        ),
    )


def _of_every_graph(layout: Layout) -> tuple[_Finding, ...]:
    return (
        _Finding(
            layout.zero_stage > 1,
            f"zero_stage {layout.zero_stage}",
            "a graph replays fixed addresses, which Megatron-FSDP of core_v0.16.1 does not keep",
            "set zero_stage to 1",
        ),
        _Finding(
            layout.offloaded_layers > 0,
            f"offloaded_layers {layout.offloaded_layers}",
            "Megatron-LM captures no graphs where activations are in host memory",
            "set offloaded_layers to 0",
        ),
    )


_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def _of_captured_modules(layout: Layout, model: ModelShape) -> tuple[_Finding, ...]:
    """Parts of layers; megatron/core/transformer/transformer_layer.py says when the norm before experts is computed
    again."""
    modules, recomputed = layout.modules_captured, layout.modules_recomputed
    env = layout.of_trial.env
    has_segments = any("expandable_segments:True" in (env.get(name) or "") for name in _ALLOCATOR)
    routes, preprocesses = "moe_router" in modules, "moe_preprocess" in modules
    return (
        _Finding(
            bool(modules) and has_segments and env.get("NCCL_GRAPH_REGISTER") != "0",
            "expandable_segments:True and without NCCL_GRAPH_REGISTER=0",
            "megatron/training/arguments.py asserts it: NCCL registers buffers in graphs, whose segments may be mapped"
            " elsewhere",
            "add NCCL_GRAPH_REGISTER: 0 to space.env",
        ),
        _Finding(
            bool(modules) and layout.activation_checkpointing == "full",
            "activation_checkpointing full",
            "layers that are computed again as a whole are captured by full_iteration alone",
            "set activation_checkpointing to selective or none",
        ),
        _Finding(
            preprocesses and not routes,
            "no moe_router",
            "moe_preprocess is captured together with moe_router",
            "add moe_router",
        ),
        _Finding(
            routes and model.num_experts is None,
            "a model without experts",
            "moe_router and moe_preprocess are parts of layers with experts",
            "use mlp",
        ),
        _Finding(
            "mlp" in modules and model.num_expert_layers == model.num_layers,
            "experts in every layer",
            "mlp is captured in layers without experts",
            "use moe_router",
        ),
        _Finding(
            "mlp" in modules and layout.expert_overlap,
            "expert_overlap true",
            "Megatron-LM does not capture MLPs where it overlaps all-to-alls of experts",
            "leave mlp out",
        ),
        _Finding(
            routes and "moe" in recomputed,
            "recompute_modules moe",
            "recomputed experts include the router, and a graph captures all of what is recomputed or nothing",
            "leave moe_router out",
        ),
        _Finding(
            routes and "layernorm" in recomputed and not (preprocesses and layout.expert_dispatcher == "alltoall"),
            f"recompute_modules layernorm and expert_dispatcher {layout.expert_dispatcher}",
            "a graph returns the norm before its router, so that Megatron-LM keeps it, unless the graph goes on to what"
            " all-to-alls send",
            "recompute other modules",
        ),
    )


def _of_whole_graph(layout: Layout, model: ModelShape) -> tuple[_Finding, ...]:
    """A graph of all passes. Experts in it are the fused ones of Transformer Engine (main,
    megatron/core/transformer/moe/experts.py, _is_fused_impl_supported)."""
    is_one = layout.cuda_graphs == "full_iteration" and model.num_experts is not None
    return (
        _Finding(
            is_one and not layout.captures_experts,
            f"experts and expert_dispatcher {layout.expert_dispatcher}",
            "the host waits for the number of each expert's tokens, but for HybridEP's, which has room for a fixed one"
            " (--moe-expert-rank-capacity-factor, from core_v0.18.0 on)",
            "set expert_dispatcher to hybridep",
        ),
        _Finding(
            is_one and layout.expert_tensor_parallel > 1,
            f"expert_tensor_parallel {layout.expert_tensor_parallel}",
            "experts that a graph captures are not split",
            "set expert_tensor_parallel to 1",
        ),
        _Finding(
            is_one and model.mlp_activation not in ("silu", "clamped_swiglu"),
            f"experts and model.activation {model.mlp_activation}",
            "experts that a graph captures have silu or clamped_swiglu with a gate",
            "capture attn, moe_router and moe_preprocess",
        ),
    )
