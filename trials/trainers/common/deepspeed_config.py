"""DeepSpeed's table, and its configuration for a layout. Standard library only.

Key names: DeepSpeed 0.19, deepspeed/runtime/config.py and deepspeed/runtime/zero/config.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.pipeline_split import stage_layers
from search_spaces.model_shape import ModelShape
from trials.trainers.table import SWITCH, Keys, Row, Table, Values, by_option, nested, number, plain, word
from trials.trial import TrialSpec

TOTAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
ZERO, _INTERVAL = "zero_optimization", "pipeline.activation_checkpoint_interval"
_OFFLOADED, _SUMS = f"{ZERO}.offload_optimizer", "data_types.grad_accum_dtype"
DEFAULT_BUCKET_ELEMENTS = 500_000_000
_BUCKET = f"{ZERO}.reduce_bucket_size"
_GRADIENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of one gradient element in a reduction bucket."""
_AUTOCAST = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}
_NO_AXIS = "are no axis of a layout"
_IN_HOST_MEMORY = "in host memory or on NVMe are no value of offload"


# -- how a configuration is read


def _grad_accum_steps(keys: Keys) -> int | None:
    """1 where the file has only one of the two batch sizes."""
    if keys.has(STEPS):
        return keys.count(STEPS)
    return 1 if keys.has(TOTAL) != keys.has(MICRO) else None


def _tensor_parallel(keys: Keys) -> int | None:
    """None for DeepSpeed's 0 tensor-parallel ranks, which are none."""
    name = "tensor_parallel.autotp_size"
    return keys.count(name) if keys.whole(name) else None


def _precision(keys: Keys) -> str:
    """A section that is on prevails over one that the program that starts DeepSpeed may turn on."""
    switches = {"bf16.enabled": "bf16", "bfloat16.enabled": "bf16", "fp16.enabled": "fp16"}
    for name in sorted(switches, key=keys.is_in_doubt):
        if keys.chosen(name, SWITCH, False):
            return switches[name]
    if not keys.chosen("torch_autocast.enabled", SWITCH, False):
        return "fp32"
    words = {f"{prefix}{name}": precision for name, precision in _AUTOCAST.items() for prefix in ("", "torch.")}
    return keys.chosen("torch_autocast.dtype", words, "fp16", "precision is fp32, bf16 or fp16")


def _offload(keys: Keys) -> str:
    keys.chosen(f"{_OFFLOADED}.ratio", {"1": 1, "1.0": 1}, 1, "offload moves the whole optimizer")
    older = keys.chosen(f"{ZERO}.cpu_offload", {"true": "optimizer", "false": "none"}, "none")
    rule = "offload moves the optimizer to host memory; NVMe is no value of it"
    return keys.chosen(f"{_OFFLOADED}.device", {"none": "none", "cpu": "optimizer"}, older, rule)


def _overlap_comm(keys: Keys) -> bool:
    """DeepSpeed's default is true with ZeRO 3."""
    stated = keys.chosen(f"{ZERO}.overlap_comm", SWITCH, None)
    return str(keys.value(f"{ZERO}.stage")) == "3" if stated is None else stated


def _bucket_mib(precision: Callable[[Keys], str], keys: Keys) -> int | None:
    """DeepSpeed counts a bucket in elements. None for its default size, which is no choice."""
    elements = keys.value(_BUCKET)
    if elements in (None, DEFAULT_BUCKET_ELEMENTS):
        return None
    if type(elements) not in (int, float) or not 0 < elements <= 10**12:
        raise InputError(keys.problem(_BUCKET, "a number of elements above 0"))
    return max(1, round(elements * _GRADIENT_BYTES[precision(keys)] / 2**20))


def _sums_in_bf16(keys: Keys) -> bool:
    return keys.chosen(_SUMS, {"fp32": False, "float32": False}, False, "trials with DeepSpeed sum gradients in fp32")


def _checkpointing(keys: Keys) -> str | None:
    return keys.chosen(_INTERVAL, {"0": None, "1": "full"}, None, "trials recompute one layer at a time")


# -- how a layout is written


def zero_rows(precision: Callable[[Keys], str]) -> tuple[Row, ...]:
    """ZeRO in every configuration of DeepSpeed; `precision` reads the type of the gradients in a bucket."""
    return (
        word("zero_stage", f"{ZERO}.stage", {stage: stage for stage in range(4)}, 0),
        Row(
            "offload",
            lambda spec: {f"{_OFFLOADED}.device": "cpu"} if spec.layout.offload == "optimizer" else {},
            _offload,
        ),
        plain("overlap_comm", f"{ZERO}.overlap_comm", _overlap_comm),
        Row("bucket_mib", _bucket_keys, partial(_bucket_mib, precision)),
        Row("gradients_in_bf16", read=_sums_in_bf16),
    )


def _bucket_keys(spec: TrialSpec) -> Values:
    layout = spec.layout
    if layout.bucket_mib is None:
        return {}
    elements = layout.bucket_mib * 2**20 // _GRADIENT_BYTES[layout.precision]
    return {_BUCKET: elements, f"{ZERO}.allgather_bucket_size": elements}


def _precision_keys(spec: TrialSpec) -> Values:
    """Gradients are summed in fp32: in half precision the contribution of many small micro-batches is lost."""
    precision = spec.layout.precision
    return {} if precision == "fp32" else {f"{precision}.enabled": True, _SUMS: "fp32"}


def _own_stage(spec: TrialSpec) -> Values:
    """ZeRO 1 at least for half precision. DeepSpeed's optimizer for ZeRO 0 begins at Adam's second step: its step count
    is one ahead. With a single data-parallel rank nothing is sharded, and ZeRO 1 is the same training without that bug.
    """
    least = 0 if spec.layout.precision == "fp32" else 1
    return {f"{ZERO}.stage": max(least, spec.layout.zero_stage)}


def _pipeline_keys(spec: TrialSpec) -> Values:
    """Whole activations between stages, and no reentrant checkpointing: the combination that is correct with
    tensor-parallel ranks."""
    layout = spec.layout
    if layout.pipeline_parallel == 1:
        return {}
    return {
        _INTERVAL: 1 if layout.activation_checkpointing == "full" else 0,
        "pipeline.use_reentrant": False,
        "pipeline.pipe_partitioned": False,
        "pipeline.grad_partitioned": False,
    }


DEEPSPEED = Table(
    "DeepSpeed",
    "0.19",
    rows=(
        number("global_batch_size", TOTAL),
        number("micro_batch_size", MICRO),
        plain("grad_accum_steps", STEPS, _grad_accum_steps),
        Row("tensor_parallel", read=_tensor_parallel),
        *zero_rows(_precision),
        Row("zero_stage", _own_stage),
        Row("precision", _precision_keys, _precision),
        Row("activation_checkpointing", _pipeline_keys, _checkpointing),
    ),
    trains_another=by_option(
        {
            f"sequences split over ranks (Ulysses) {_NO_AXIS}": "sequence_parallel_size",
            "experts are not read from this trainer": "expert_parallel.enabled",
            "trials with this trainer have moments and sums in fp32": """
                bf16.bf16_optimizer_states *_master_weights_and_grads
                """,
            "this sharding is no value of zero_stage": f"{ZERO}.mics_shard_size {ZERO}.zero_hpz_partition_size",
            f"quantized weights and gradients {_NO_AXIS}": f"{ZERO}.zero_quantized_* {ZERO}.zeropp_loco_param*",
            f"parameters {_IN_HOST_MEMORY}": f"""
                {ZERO}.offload_param.device {ZERO}.cpu_offload_param compile.offload_parameters
                """,
            f"activations {_IN_HOST_MEMORY}": "activation_checkpointing.cpu_checkpointing compile.offload_activation",
            "an optimizer that is in host memory for a part of the step is no value of offload": f"""
                {ZERO}.zenflow* compile.offload_opt_states
                """,
            "no field of the model section expresses it": """
                compression_training*.enabled eigenvalue.enabled progressive_layer_drop.enabled
                quantize_training.enabled sparse_attention.mode weight_quantization*.enabled
                """,
            "sequences or samples of changing length are no axis of a search": """
                curriculum_learning.enabled data_efficiency.enabled
                """,
            "the global batch of a search is fixed": "elasticity.enabled",
            "precision is fp32, bf16 or fp16; Apex AMP is none of them": "amp.enabled",
        }
    ),
)


def ds_config(layout: Layout, gradient_clipping: float, model: ModelShape | None = None) -> dict[str, Any]:
    """DeepSpeed's configuration of this layout; `gradient_clipping` is the largest gradient norm, 0.0 for no limit.

    Where the layout leaves the buckets to DeepSpeed, they are no larger than a part of `model`, if that is given. The
    optimizer is the caller's own (torch AdamW), so none is named and none is compiled. Tensor and pipeline degrees are
    not in it: they belong to the model's topology.
    """
    config = nested(DEEPSPEED.written(SimpleNamespace(layout=layout)))
    section = config[ZERO]
    if layout.bucket_mib is None and model is not None and section["stage"] > 0:
        # DeepSpeed allocates the whole bucket, 2 GB in fp32 and twice that with overlap, even for small models.
        section["reduce_bucket_size"] = min(DEFAULT_BUCKET_ELEMENTS, _largest_part(model, layout))
    return {
        **config,
        "gradient_clipping": gradient_clipping,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "wall_clock_breakdown": False,  # DeepSpeed 0.19's pipeline engine crashes on its own timers when it is on
        "timers": {"throughput": {"synchronized": False}},  # otherwise it synchronizes around every micro-batch
    }


def fp32_sums(layout: Layout) -> dict[str, Any]:
    """Keys for a trainer that drives DeepSpeed itself: in bf16 gradients are summed in fp32, which DeepSpeed refuses
    without ZeRO. In fp16 it adds them up in fp16, and the loss scale keeps them in range.

    The memory model (search_spaces/cost_model/memory.py) counts the same bytes.
    """
    sums = layout.precision == "bf16" and layout.zero_stage > 0
    return {"data_types": {"grad_accum_dtype": "fp32"}} if sums else {}


def _largest_part(model: ModelShape, layout: Layout) -> int:
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
    split = layers * (int(model.layer_parameters) - whole_layer) + tables * table
    positions = is_first * (model.embedding_parameters - table)
    return split // layout.tensor_parallel + layers * whole_layer + positions + is_last * model.norm_parameters
