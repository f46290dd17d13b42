"""DeepSpeed configurations for a layout. Standard library only.

Key names: DeepSpeed 0.19, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import BATCH_RULE, Layout
from search_spaces.layouts.pipeline_split import stage_layers
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations

GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of one gradient element in a reduction bucket."""
DEFAULT_BUCKET_ELEMENTS = 500_000_000


def ds_config(
    layout: Layout, global_batch_size: int, gradient_clipping: float, model: ModelShape | None = None
) -> dict[str, Any]:
    """DeepSpeed's configuration of this layout; `gradient_clipping` is the largest gradient norm, 0.0 for no limit.

    Where the layout leaves the buckets to DeepSpeed, they are no larger than a part of `model`, if that is given. The
    optimizer is the caller's own (torch AdamW), so none is named and none is compiled. Tensor and pipeline degrees are
    not in it: they belong to the model's topology. InputError when the layout does not make this global batch.
    """
    _require_batch(layout, global_batch_size)
    config: dict[str, Any] = {
        "train_batch_size": global_batch_size,
        "train_micro_batch_size_per_gpu": layout.micro_batch_size,
        "gradient_accumulation_steps": layout.grad_accum_steps,
        "gradient_clipping": gradient_clipping,
        "zero_optimization": _zero_section(layout, model),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,  # DeepSpeed 0.19's pipeline engine crashes on its own timers when it is on
        "timers": {"throughput": {"synchronized": False}},  # otherwise it synchronizes around every micro-batch
    }
    if layout.precision != "fp32":
        config[layout.precision] = {"enabled": True}
        # Otherwise gradients are summed in half precision, which loses the contribution of many small micro-batches.
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if layout.pipeline_parallel > 1:
        config["pipeline"] = _pipeline_section(layout)
    return config


def zero_section(layout: Layout, base: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's section on ZeRO for this layout; other keys stay as in `base`."""
    ours = ds_config(layout, layout.global_batch_size, gradient_clipping=0.0)["zero_optimization"]
    kept = {key: value for key, value in base.items() if key not in ("offload_optimizer", "cpu_offload")}
    return {**kept, **ours, "stage": layout.zero_stage}


def fp32_sums(layout: Layout) -> dict[str, Any]:
    """Keys for a trainer that drives DeepSpeed itself: in bf16 gradients are summed in fp32, which DeepSpeed refuses
    without ZeRO. In fp16 it adds them up in fp16, and the loss scale keeps them in range.

    The memory model (search_spaces/cost_model/memory.py) counts the same bytes.
    """
    sums = layout.precision == "bf16" and layout.zero_stage > 0
    return {"data_types": {"grad_accum_dtype": "fp32"}} if sums else {}


def deepspeed_problem(layout: Layout, model: ModelShape) -> Problem | None:
    """The rule that keeps DeepSpeed from training with this layout; None when it can. Settings that it would silently
    ignore, and compilation, which its configuration does not have, are no reasons."""
    asked = replace(layout.canonical(), engine="deepspeed", overlap_comm=False, bucket_mib=None, torch_compile=False)
    return next(engine_violations(asked, model), None)


def _require_batch(layout: Layout, global_batch_size: int) -> None:
    if layout.global_batch_size != global_batch_size:
        raise InputError.of(
            "batch",
            f"micro batch {layout.micro_batch_size} x accumulation {layout.grad_accum_steps} x data "
            f"{layout.data_parallel} = {layout.global_batch_size}, but the global batch is {global_batch_size}",
            key="global_batch_size",
            value=global_batch_size,
            rule=BATCH_RULE,
        )


def _zero_section(layout: Layout, model: ModelShape | None) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": _zero_stage(layout), "overlap_comm": layout.overlap_comm}
    if layout.offload == "optimizer":
        section["offload_optimizer"] = {"device": "cpu"}
    if layout.bucket_mib is not None:
        # DeepSpeed counts a bucket in elements.
        elements = layout.bucket_mib * 2**20 // GRADIENT_BYTES[layout.precision]
        section |= {"reduce_bucket_size": elements, "allgather_bucket_size": elements}
    elif model is not None and section["stage"] > 0:
        # DeepSpeed allocates the whole bucket, 2 GB in fp32 and twice that with overlap, even for small models.
        section["reduce_bucket_size"] = min(DEFAULT_BUCKET_ELEMENTS, largest_part(model, layout))
    return section


def largest_part(model: ModelShape, layout: Layout) -> int:
    """Parameters of the largest stage on one of its tensor-parallel ranks, before sharding among data-parallel
    ranks."""
    last = layout.pipeline_parallel - 1
    layers = stage_layers(model, layout.pipeline_parallel)
    return max(_part(model, layout, count, stage == 0, stage == last) for stage, count in enumerate(layers))


def _part(model: ModelShape, layout: Layout, layers: int, is_first: bool, is_last: bool) -> int:
    """Parameters of a stage per tensor-parallel rank. Tensor-parallel ranks split everything but norms, learned
    positions and the biases of reduced outputs."""
    whole_layer = model.unsplit_layer_parameters
    table = model.vocab_size * model.hidden_size
    tables = is_first + (is_last and not (is_first and model.tied_embeddings))
    split = layers * (model.layer_parameters - whole_layer) + tables * table
    positions = is_first * (model.embedding_parameters - table)
    return split // layout.tensor_parallel + layers * whole_layer + positions + is_last * model.norm_parameters


def _zero_stage(layout: Layout) -> int:
    """ZeRO 1 at least for half precision. DeepSpeed's optimizer for ZeRO 0 begins at Adam's second step: its step count
    is one ahead. With a single data-parallel rank nothing is sharded, and ZeRO 1 is the same training without that bug.
    """
    return layout.zero_stage if layout.precision == "fp32" else max(1, layout.zero_stage)


def _pipeline_section(layout: Layout) -> dict[str, Any]:
    """Whole activations between stages, and no reentrant checkpointing: the combination that is correct with
    tensor-parallel ranks."""
    return {
        "activation_checkpoint_interval": 1 if layout.activation_checkpointing == "full" else 0,
        "use_reentrant": False,
        "pipe_partitioned": False,
        "grad_partitioned": False,
    }
