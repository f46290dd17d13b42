"""Megatron-LM, started with its options. Standard library only.

Rules: Megatron-LM megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from search_spaces.layouts.layout import FUSED_DISPATCHERS, Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import (
    MEGATRON_RULES,
    MEGATRON_SCHEDULES,
    Rule,
    RuleViolation,
    activations,
    engine_limits,
    quantized_products,
    sharded_replicas,
    zero_in_pipeline,
)
from trials.ranks.cuda_connections import refused_connections
from trials.trainers.base import SCRIPT_KEYS, Invocation, LayoutExport, Trainer, last_rank
from trials.trainers.common.megatron_experts import GROUPED_PRODUCTS
from trials.trainers.common.megatron_log import MEGATRON_LM_LOG
from trials.trainers.common.megatron_options import (
    NO_DROPOUT_OPTIONS,
    environment_of,
    megatron_lm_layout,
    megatron_lm_options,
    newer_megatron_lm,
    oldest_megatron_lm,
    unsupported_option_reason,
)
from trials.trainers.common.recipe import (
    arguments_from,
    first_violation,
    option_lines,
    script_or,
    torchrun,
    user_arguments,
)
from trials.trainers.megatron_lm.checkout import gradient_options
from trials.trainers.megatron_lm.step_rules import cuda_graphs, expert_overlap
from trials.trial import TrialSpec

NAME = "megatron-lm"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    script, given = spec.trainer["script"], tuple(spec.trainer.get("arguments", ()))
    words = megatron_lm_options(spec, given, gradient_options(spec.layout, script, given))
    return Invocation(
        (python, script, *words),
        environment=environment_of(spec.layout, spec.accelerator),
        refused=refused_connections(spec.layout),
    )


_ARGUMENTS_FILE = "megatron_args.txt"


def _files(spec: TrialSpec) -> dict[str, str]:
    newer, oldest = option_lines(newer_megatron_lm(spec.layout)), oldest_megatron_lm(spec.layout)
    advice = f"# Megatron-LM from core_v0.17.0 on also needs {newer}" if newer else ""
    advice += f"# Megatron-LM before {oldest} does not know these options\n" if oldest else ""
    return {_ARGUMENTS_FILE: advice + option_lines([*megatron_lm_layout(spec), *NO_DROPOUT_OPTIONS])}


def _of_software(fingerprint: Mapping[str, Any]) -> str:
    """Options for the layers that engine megatron-core took, where they are not Megatron-LM's default."""
    if fingerprint.get("megatron_layers") != "local":
        return ""
    return f"--transformer-impl local\n--no-rope-fusion\n--no-persist-layer-norm\n{_WITHOUT_APEX}\n{_WITHOUT_TE}\n"


_WITHOUT_APEX = "# Where Apex is not installed, add --no-gradient-accumulation-fusion"
_WITHOUT_TE = f"# Without Transformer Engine experts multiply one by one: leave {GROUPED_PRODUCTS} out"


def megatron_torchrun(spec: TrialSpec) -> str:
    """torchrun's command line with Megatron-LM's variables."""
    return torchrun(spec, environment_of(spec.layout, spec.accelerator), refused_connections(spec.layout))


def _start(spec: TrialSpec) -> str:
    start, script = megatron_torchrun(spec), script_or(spec, NAME, "pretrain_gpt.py")
    return f"{start} {script} {arguments_from(_ARGUMENTS_FILE)} {user_arguments(spec, NAME)}"


def _sharding(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron-FSDP, which has no pipeline."""
    yield from zero_in_pipeline(layout, f"{layout.engine} supports zero_stage 0 and 1 in a pipeline")
    if layout.offload == "optimizer" and not (layout.zero_stage == 1 and layout.precision == "bf16"):
        yield RuleViolation(
            "offload",
            f"offload is optimizer with zero_stage {layout.zero_stage} and precision {layout.precision}",
            "--optimizer-cpu-offload needs the precision-aware distributed optimizer: zero_stage 1 and bf16",
            "set zero_stage to 1 and precision to bf16, or offload to none",
        )


def _replicas(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """Instances of the distributed optimizer (megatron/core/parallel_state.py, initialize_model_parallel)."""
    yield from sharded_replicas(layout, model)
    if layout.data_parallel_replicas > 1 and layout.zero_stage > 1:
        yield RuleViolation(
            "data_parallel_replicas",
            f"data_parallel_replicas is {layout.data_parallel_replicas} with zero_stage {layout.zero_stage}",
            "several instances of Megatron-LM's distributed optimizer need zero_stage 1",
            "set zero_stage to 1, or data_parallel_replicas to 1",
        )


def _tensor_overlap(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/training/arguments.py, validate_args; the products are Transformer Engine's."""
    refused = {"sequence_parallel false": not layout.sequence_parallel, "precision fp32": layout.precision == "fp32"}
    found = [what for what, is_refused in refused.items() if is_refused]
    if layout.tensor_parallel_overlap and found:
        yield RuleViolation(
            "tensor_parallel_overlap",
            f"tensor_parallel_overlap is true with {' and '.join(found)}",
            "Megatron-LM overlaps collectives of sequence parallelism with Transformer Engine's products in 16 bits",
            "set sequence_parallel to true and precision to bf16, or tensor_parallel_overlap to false",
        )


def _offloaded_layers(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/core/transformer/transformer_config.py, __post_init__; Transformer Engine copies the activations."""
    if not layout.offloaded_layers:
        return
    refused = {
        f"model.num_layers {model.num_layers}": layout.offloaded_layers >= model.num_layers,
        f"pipeline_parallel {layout.pipeline_parallel}": layout.pipeline_parallel > 1,
        f"activation_checkpointing {layout.activation_checkpointing}": layout.activation_checkpointing != "none",
    }
    for other, is_refused in refused.items():
        if is_refused:
            yield RuleViolation(
                "offloaded_layers",
                f"offloaded_layers is {layout.offloaded_layers} with {other}",
                "Megatron-LM offloads fewer layers than the model has, without a pipeline and without recomputation",
                "set offloaded_layers to 0",
            )


def _quantized(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/core/transformer/transformer_config.py, and validate_args(): layers in 16 bits and weights that are kept
    in 8 or 4."""
    kept, stage = layout.layers_in_16_bits, model.num_layers // layout.pipeline_parallel
    if kept and layout.matmul_precision == "fp8_delayed":
        yield RuleViolation(
            "layers_in_16_bits",
            f"layers_in_16_bits is {kept} with matmul_precision fp8_delayed",
            "delayed scaling has all layers in 8 bits",
            "set layers_in_16_bits to 0, or matmul_precision to fp8_tensorwise",
        )
    if kept > stage:
        yield RuleViolation(
            "layers_in_16_bits",
            f"layers_in_16_bits is {kept} with {stage} layers a stage",
            "layers_in_16_bits is at most the layers of a pipeline stage, num_layers / pipeline_parallel",
            f"set layers_in_16_bits to {stage} or less",
        )
    discarded = [name for name in ("layernorm", "moe_act") if name in layout.modules_recomputed]
    if discarded and layout.matmul_precision == "fp8_delayed":
        yield RuleViolation(
            "recompute_modules",
            f"recompute_modules has {' and '.join(discarded)} with matmul_precision fp8_delayed",
            "delayed scaling recomputes neither layernorm nor moe_act",
            "leave them out, or set matmul_precision to fp8_tensorwise",
        )
    yield from _of_optimizer(layout)
    if layout.quantized_weights and layout.zero_stage == 0:
        yield RuleViolation(
            "quantized_weights",
            "quantized_weights is true with zero_stage 0",
            "--fp8-param-gather and --fp4-param-gather need the distributed optimizer or Megatron-FSDP",
            "set zero_stage to 1 or more, or quantized_weights to false",
        )
    if layout.quantized_weights and layout.offload == "optimizer" and layout.matmul_precision != "fp8_delayed":
        yield RuleViolation(
            "quantized_weights",
            f"quantized_weights is true with offload optimizer and matmul_precision {layout.matmul_precision}",
            "--optimizer-cpu-offload takes 8-bit weights of delayed scaling only",
            "set quantized_weights to false, or matmul_precision to fp8_delayed",
        )


def _context(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/training/arguments.py, validate_args(); transformer_engine/pytorch/attention/dot_product_attention."""
    count = layout.context_parallel
    if count == 1:
        return
    if layout.attention_kernel != "flash":
        yield RuleViolation(
            "context_parallel",
            f"context_parallel is {count} with attention_kernel {layout.attention_kernel}",
            "Transformer Engine's unfused attention has no context parallelism",
            "set attention_kernel to flash, or context_parallel to 1",
        )
    if layout.sequence_parallel and (model.seq_length // count) % layout.tensor_parallel:
        yield RuleViolation(
            "context_parallel",
            f"seq_length {model.seq_length} / context_parallel {count} is no multiple of tensor_parallel"
            f" {layout.tensor_parallel} with sequence_parallel true",
            "tensor-parallel ranks split the positions of a context-parallel rank",
            "use a smaller context_parallel or tensor_parallel",
        )
    yield from _context_transport(layout, model)


def _context_transport(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    transport = layout.context_transport
    split = {"a2a": layout.context_parallel, "a2a_p2p": layout.context_inner}.get(transport, 1)
    for name in ("num_attention_heads", "num_key_value_heads"):
        if (getattr(model, name) // layout.tensor_parallel) % split:
            yield RuleViolation(
                "context_heads",
                f"context_transport is {transport}, and {split} does not divide {name} {getattr(model, name)} /"
                f" tensor_parallel {layout.tensor_parallel}",
                "all-to-alls give each rank of their group some of the heads",
                "use a smaller context_parallel or tensor_parallel, or context_transport p2p",
            )
    if transport == "a2a_p2p" and (layout.context_parallel % split or layout.context_parallel == split):
        yield RuleViolation(
            "context_inner",
            f"context_inner is {split} with context_parallel {layout.context_parallel}",
            "a2a_p2p has several inner groups: context_inner divides context_parallel and is less",
            "use a smaller context_inner, or context_transport a2a",
        )
    if model.attention_sinks and transport != "a2a":
        yield RuleViolation(
            "context_transport",
            f"context_transport is {transport} with model.attention_sinks",
            "Transformer Engine has sinks with all-to-alls alone",
            "set context_transport to a2a",
        )
    if model.sliding_window is not None and transport in ("p2p", "a2a_p2p"):
        yield RuleViolation(
            "context_transport",
            f"context_transport is {transport} with model.sliding_window",
            "Transformer Engine's rings have no sliding windows",
            "set context_transport to all_gather or a2a",
        )


def _of_optimizer(layout: Layout) -> Iterator[RuleViolation]:
    """validate_args(): the gradients' and the moments' types."""
    if layout.gradients_in_bf16 and layout.precision != "bf16":
        yield RuleViolation(
            "gradients_in_bf16",
            f"gradients_in_bf16 is true with precision {layout.precision}",
            "--grad-reduce-in-bf16 is for weights in bf16",
            "set precision to bf16, or gradients_in_bf16 to false",
        )
    if layout.moment_dtype != "fp32" and layout.zero_stage != 1:
        yield RuleViolation(
            "moment_dtype",
            f"moment_dtype is {layout.moment_dtype} with zero_stage {layout.zero_stage}",
            "moments of other types need the precision-aware distributed optimizer: zero_stage 1",
            "set zero_stage to 1, or moment_dtype to fp32",
        )


def _dispatcher(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """DeepEP's and HybridEP's kernels (megatron/core/transformer/moe/fused_a2a.py)."""
    if layout.expert_dispatcher in FUSED_DISPATCHERS and layout.precision != "bf16":
        yield RuleViolation(
            "expert_dispatcher",
            f"expert_dispatcher is {layout.expert_dispatcher} with precision {layout.precision}",
            "DeepEP and HybridEP send tokens in bf16",
            "set precision to bf16, or expert_dispatcher to alltoall",
        )


def _biased_experts(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    if model.num_experts is None or not model.has_biases:
        return
    if layout.expert_tensor_parallel > 1:
        yield RuleViolation(
            "expert_biases",
            f"expert_tensor_parallel is {layout.expert_tensor_parallel} with biases in the experts",
            "Megatron-LM has experts with biases at expert_tensor_parallel 1 alone (transformer_config.py)",
            "set expert_tensor_parallel to 1, or model.linear_biases to false",
        )
    if model.shared_expert_ffn_hidden_size is not None:
        yield RuleViolation(
            "expert_biases",
            "model.shared_expert_ffn_hidden_size is given with biases",
            "Megatron-LM has shared experts without biases (transformer/moe/shared_experts.py)",
            "set model.linear_biases to false",
        )
    if model.mlp_activation == "gelu":
        yield RuleViolation(
            "expert_activation",
            "model.activation is gelu with biases in the experts",
            "Megatron-LM's fused GELU adds a bias, and its experts have none of these (transformer/mlp.py)",
            "set model.linear_biases to false",
        )


def _rotated(layout: Layout, model: ModelShape) -> Iterator[RuleViolation]:
    """megatron/training/arguments.py, validate_args() of core_v0.16.1; main has further tokens with learned positions,
    too."""
    given = [name for name in ("key_value_latent_size", "num_mtp_layers") if name in model.features]
    if given and model.position_embedding != "rotary":
        yield RuleViolation(
            "position_embedding",
            f"model.{given[0]} is given with position_embedding {model.position_embedding}",
            "Megatron-LM has latent attention and layers for further tokens with rotary positions alone",
            "set model.position_embedding to rotary",
        )


RULES: tuple[Rule, ...] = (
    *MEGATRON_RULES,
    quantized_products,
    _quantized,
    _context,
    _sharding,
    _replicas,
    _tensor_overlap,
    expert_overlap,
    cuda_graphs,
    _offloaded_layers,
    _biased_experts,
    _dispatcher,
    _rotated,
    activations(("silu", "clamped_swiglu"), ("gelu", "squared_relu")),
    engine_limits(NAME, {"pipeline_schedule": MEGATRON_SCHEDULES}),
)

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script",),
    optional_keys=SCRIPT_KEYS,
    invocation=_invocation,
    log_format=MEGATRON_LM_LOG,
    log_rank=last_rank,
    argument_error=unsupported_option_reason,
    shows_layout=True,
    export=LayoutExport(NAME, "Megatron-LM", NAME, first_violation(NAME, RULES), _files, _start, _of_software),
)
