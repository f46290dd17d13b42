"""DeepSpeed configurations for a layout, and their import. Standard library only.

Key names: DeepSpeed 0.19, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from search_spaces.errors import InputError, Problem, format_value
from search_spaces.layouts.layout import BATCH_RULE, Layout
from search_spaces.layouts.pipeline_split import stage_layers
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from trials.trainers.common.imported_config import ImportedConfig
from trials.trainers.common.json_text import json_object

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
    whole_layer = 2 * model.norm_parameters + (2 * model.hidden_size if model.has_biases else 0)
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


def read_ds_config(text: str) -> ImportedConfig:
    """The layout values of a DeepSpeed configuration.

    InputError for text that is not a JSON object and for batch sizes that contradict each other. `auto`, which leaves a
    value to the trainer, is reported as not found.
    """
    config = json_object(text, "deepspeed_config", "a DeepSpeed config")
    notes: list[str] = []
    total, layout = _read_batch(config, notes)
    layout |= _read_zero(config, notes) | _read_precision(config)
    if _enabled_interval(config):
        layout["activation_checkpointing"] = "full"
    return ImportedConfig("deepspeed", layout=layout, global_batch_size=total, notes=tuple(notes))


def _read_batch(config: Mapping[str, Any], notes: list[str]) -> tuple[int | None, dict[str, Any]]:
    """(global batch, layout values) of DeepSpeed's three batch numbers, and the number of data-parallel ranks where all
    are given."""
    total = _count(config, "train_batch_size", notes)
    micro = _count(config, "train_micro_batch_size_per_gpu", notes)
    steps = _count(config, "gradient_accumulation_steps", notes)
    values = {"micro_batch_size": micro, "grad_accum_steps": steps}
    if total and micro and steps:
        values["data_parallel"] = _data_ranks(total, micro, steps)
    return total, {name: value for name, value in values.items() if value is not None}


def _data_ranks(total: int, micro: int, steps: int) -> int:
    if total % (micro * steps):
        raise InputError.of(
            "batch",
            f"train_batch_size {total} is not a multiple of micro batch {micro} x accumulation {steps}",
            key="train_batch_size",
            value=total,
            rule=BATCH_RULE,
            fix=f"a multiple of {micro * steps}, or auto for the one of the three that the trainer is to fill in",
        )
    return total // (micro * steps)


def _count(config: Mapping[str, Any], key: str, notes: list[str]) -> int | None:
    """The whole number at `key`; None, with a note, where the file leaves it to the trainer."""
    value = config.get(key)
    if type(value) is int and value >= 1:
        return value
    if value is None or value == "auto":
        notes.append(f"{key} is {'not given' if value is None else 'auto'} in the DeepSpeed config.")
        return None
    raise InputError.of(
        "deepspeed_config", f"{key} is {format_value(value)}", key=key, value=value, rule="a whole number of at least 1"
    )


def _read_zero(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    section = _section(config, "zero_optimization")
    layout: dict[str, Any] = {}
    stage = section.get("stage", 0)
    if stage in (0, 1, 2, 3) and type(stage) is int:
        layout["zero_stage"] = stage
    else:
        notes.append(f"zero_optimization.stage is {format_value(stage)}, which is not a ZeRO stage.")
    if _on_cpu(section, "offload_optimizer", notes):
        layout["offload"] = "optimizer"
    if _on_cpu(section, "offload_param", notes):
        notes.append(
            "offload_param moves the parameters to the host, which no layout field expresses; it was left out."
        )
    if section.get("overlap_comm") is True:
        layout["overlap_comm"] = True
    return layout | _read_bucket(section, config)


def _on_cpu(section: Mapping[str, Any], key: str, notes: list[str]) -> bool:
    device = _section(section, key).get("device", "none")
    if device == "nvme":
        notes.append(f"{key} goes to NVMe, which no layout field expresses; it was left out.")
    return device == "cpu" or (key == "offload_optimizer" and section.get("cpu_offload") is True)


def _read_bucket(section: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    elements = section.get("reduce_bucket_size", DEFAULT_BUCKET_ELEMENTS)
    if type(elements) not in (int, float) or elements == DEFAULT_BUCKET_ELEMENTS or not math.isfinite(elements):
        return {}
    width = GRADIENT_BYTES[_read_precision(config)["precision"]]
    return {"bucket_mib": max(1, round(elements * width / 2**20))}


def _read_precision(config: Mapping[str, Any]) -> dict[str, Any]:
    for precision, keys in (("bf16", ("bf16", "bfloat16")), ("fp16", ("fp16",))):
        if any(_section(config, key).get("enabled") is True for key in keys):
            return {"precision": precision}
    return {"precision": "fp32"}


def _enabled_interval(config: Mapping[str, Any]) -> bool:
    interval = _section(config, "pipeline").get("activation_checkpoint_interval", 0)
    return type(interval) is int and interval > 0


def _section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = config.get(key)
    return section if isinstance(section, Mapping) else {}
