"""Model, layout and batch, read from Megatron-Bridge's keys. What a key does not say, the recipe decides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.megatron.expert_fields import CoreFields
from orchestrator.importers.megatron.layout_fields import (
    FSDP_STAGES,
    KERNELS,
    SPLIT,
    bucket_mib,
    context_transport,
    cuda_graphs,
    inner_context,
    recompute_modules,
    some_layers,
)
from orchestrator.importers.megatron.stage_layout import StageLayout
from orchestrator.importers.settings import (
    SWITCH,
    FieldReaders,
    Settings,
    ValueRule,
    ValueRules,
    head_size,
    one_of,
    other_biases,
    rotary_base,
)
from trials.trainers.common.megatron_options import RECIPE_NAMES
from trials.trainers.megatron_bridge.overrides import MIXED_PRECISIONS, QUANTIZATION

CORE = CoreFields(
    lambda name: "model.num_moe_experts" if name == "num_experts" else f"model.{name}", has_defaults=False
)
_PRECISIONS = {**dict.fromkeys(MIXED_PRECISIONS.values(), "bf16"), "fp16_mixed": "fp16"}
_RECIPES = {name: word for word, name in RECIPE_NAMES.items()}
_POSITIONS = {"rope": "rotary", "learned_absolute": "learned"}
_NORMS = {"rmsnorm": "rmsnorm", "layernorm": "layernorm"}
ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    "gelu": "gelu",
    "relu": "relu",
    "squared_relu": "squared_relu",
}
"""Activations by the name of their function."""
_RANK_ORDERS = {"true": "tp-pp-dp", "false": "tp-dp-pp"}
_VOCABULARY_MULTIPLE = 128


def _tensor_parallel(keys: Settings) -> int | None:
    return keys.count("model.tensor_model_parallel_size")


def _pipeline_parallel(keys: Settings) -> int | None:
    return keys.count("model.pipeline_model_parallel_size")


STAGE_LAYOUT = StageLayout(
    "model.pipeline_model_parallel_layout", _pipeline_parallel, lambda keys: keys.count("model.num_layers")
)


def _chunks(keys: Settings) -> int | None:
    """Null is one chunk a stage."""
    if STAGE_LAYOUT.is_given(keys):
        return STAGE_LAYOUT.chunks(keys)
    name = "model.virtual_pipeline_model_parallel_size"
    return 1 if keys.is_null(name) else keys.count(name)


def _precision(keys: Settings) -> str | None:
    given = keys.value("mixed_precision")
    if isinstance(given, Mapping):
        on = next((name for name in ("bf16", "fp16") if given.get(name) is True), None)
        return on or ("fp32" if given.get("fp32") is True else None)
    return None if given is None else _PRECISIONS.get(str(given))


def _quantization(keys: Settings) -> Mapping[str, Any]:
    """Arithmetic of the linear layers, by the layout's fields; none where the recipe decides it."""
    given = keys.value("mixed_precision")
    if isinstance(given, Mapping):
        in_8_bits = _RECIPES.get(str(given.get("fp8_recipe", "tensorwise"))) if given.get("fp8") else "same"
        values: tuple[Any, ...] | None = (
            _RECIPES.get(str(given.get("fp4_recipe", "nvfp4"))) if given.get("fp4") else in_8_bits,
            _ends(given)[0] if given.get("first_last_layers_bf16") else 0,
            bool(given.get("fp8_param_gather") or given.get("fp4_param_gather")),
        )
    else:
        values = next((each for each, name in MIXED_PRECISIONS.items() if name == given), None)
    return {} if values is None else dict(zip(QUANTIZATION, values, strict=True))


def _ends(given: Mapping[str, Any]) -> list[Any]:
    return [given.get(f"num_layers_at_{end}_in_bf16", 0) for end in ("start", "end")]


def _zero_stage(keys: Settings) -> int | None:
    if keys.has("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"):
        return keys.chosen("ddp.data_parallel_sharding_strategy", FSDP_STAGES, None)
    names = ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer")
    if keys.has(*names):
        return 1
    return 0 if any(keys.chosen(name, SWITCH, None) is False for name in names) else None


def _offload(keys: Settings) -> str | None:
    """Megatron-Bridge offloads no states unless told what fraction."""
    if keys.has("optimizer.optimizer_cpu_offload"):
        return "optimizer" if keys.has("optimizer.optimizer_offload_fraction") else None
    return keys.chosen("optimizer.optimizer_cpu_offload", {"false": "none"}, None)


def _checkpointing(keys: Settings) -> str | None:
    name = "model.recompute_granularity"
    return "none" if keys.is_null(name) else keys.chosen(name, {"full": "full", "selective": "selective"}, None)


def _recompute_layers(keys: Settings) -> int | None:
    """None where the method is not block, which recomputes all layers."""
    if keys.text("model.recompute_method") != "block" or keys.text("model.recompute_granularity") != "full":
        return None
    parts = (_pipeline_parallel(keys) or 1) * (_chunks(keys) or 1)
    return some_layers(keys.count("model.recompute_num_layers"), parts, keys.count("model.num_layers"))


def _recompute_modules(keys: Settings) -> str | None:
    """Null is the core's own choice, the core attention."""
    name = "model.recompute_modules"
    return "core_attn" if keys.is_null(name) else recompute_modules(_listed_modules(keys))


def _listed_modules(keys: Settings) -> list[str]:
    given = keys.value("model.recompute_modules")
    return given if isinstance(given, list) else re.findall(r"\w+", str(given or ""))


def _pipeline_split(keys: Settings) -> str | None:
    """None where the recipe decides something that counts as a layer."""
    if STAGE_LAYOUT.is_given(keys):
        return STAGE_LAYOUT.said(keys, "split") or "own"
    counted = {part: keys.chosen(f"model.account_for_{part}_in_pipeline_split", SWITCH, None) for part in SPLIT.parts}
    if None in counted.values():
        return None
    return SPLIT.joined([part for part, is_counted in counted.items() if is_counted]) or "own"


def _offloaded_layers(keys: Settings) -> int | None:
    name = "model.cpu_offloading_num_layers"
    if keys.has("model.cpu_offloading"):
        return keys.count(name) if keys.text(name) != "0" else 0
    return keys.chosen("model.cpu_offloading", {"false": 0}, None)


def _cuda_graphs(keys: Settings) -> str | None:
    """None where the recipe decides what graphs capture."""
    implementation = keys.text("model.cuda_graph_impl")
    names = [name for key in GRAPH_MODULES for each in keys.listed(key) for name in re.findall(r"\w+", str(each))]
    is_stated = implementation in ("none", "full_iteration") or any(key in keys.given for key in GRAPH_MODULES)
    return cuda_graphs(implementation, names, not CORE.is_dense(keys)) if implementation and is_stated else None


GRAPH_MODULES = ("model.cuda_graph_scope", "model.cuda_graph_modules")


def _attention_kernel(keys: Settings) -> str | None:
    """Without a key the core's own choice, flash in half precision."""
    if keys.text("model.transformer_impl") == "local":
        return "math"
    default = "flash" if _precision(keys) in ("bf16", "fp16") else None
    return keys.chosen("model.attention_backend", KERNELS, default)


def _overlap(keys: Settings) -> bool | None:
    """comm_overlap prevails over ddp."""
    stated = keys.chosen("comm_overlap.overlap_grad_reduce", SWITCH, None)
    return keys.chosen("ddp.overlap_grad_reduce", SWITCH, None) if stated is None else stated


def _tensor_overlap(keys: Settings) -> bool | None:
    """comm_overlap prevails over the model; without sequence parallelism it does nothing (training/comm_overlap.py)."""
    stated = keys.chosen("comm_overlap.tp_comm_overlap", SWITCH, None)
    if stated is None:
        return keys.chosen("model.tp_comm_overlap", SWITCH, None)
    return stated and keys.chosen("model.sequence_parallel", SWITCH, True)


_TRANSPORT = "model.cp_comm_type"


def _sizes(keys: Settings) -> list[Any]:
    given = keys.value("model.hierarchical_context_parallel_sizes")
    return given if isinstance(given, list) else re.findall(r"\d+", str(given or ""))


def _expert_overlap(keys: Settings) -> bool | None:
    """comm_overlap prevails over the model."""
    name = "overlap_moe_expert_parallel_comm"
    stated = keys.chosen(f"comm_overlap.{name}", SWITCH, None)
    return keys.chosen(f"model.{name}", SWITCH, None) if stated is None else stated


def _bucket_mib(keys: Settings) -> int | None:
    """Null is Megatron's default."""
    return bucket_mib(keys.count("comm_overlap.bucket_size", "ddp.bucket_size"))


def _gradients_in_bf16(keys: Settings) -> bool | None:
    """The mixed precision prevails over ddp."""
    given = keys.value("mixed_precision")
    if given is None:
        return None
    in_fp32 = given.get("grad_reduce_in_fp32", True) if isinstance(given, Mapping) else True
    return not in_fp32 and _precision(keys) == "bf16"


LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": _tensor_parallel,
    "pipeline_parallel": _pipeline_parallel,
    "micro_batch_size": lambda keys: keys.count("train.micro_batch_size"),
    "zero_stage": _zero_stage,
    "offload": _offload,
    "activation_checkpointing": _checkpointing,
    "sequence_parallel": lambda keys: keys.chosen("model.sequence_parallel", SWITCH, None),
    "virtual_pipeline_stages": _chunks,
    "precision": _precision,
    "attention_kernel": _attention_kernel,
    "rank_order": lambda keys: keys.chosen("dist.use_tp_pp_dp_mapping", _RANK_ORDERS, None),
    "overlap_comm": _overlap,
    "bucket_mib": _bucket_mib,
    "recompute_layers": _recompute_layers,
    "recompute_modules": _recompute_modules,
    "data_parallel_replicas": lambda keys: keys.count("ddp.num_distributed_optimizer_instances"),
    "tensor_parallel_overlap": _tensor_overlap,
    "context_parallel": lambda keys: keys.count("model.context_parallel_size"),
    "context_transport": lambda keys: context_transport(keys.listed(_TRANSPORT)) if keys.value(_TRANSPORT) else None,
    "context_inner": lambda keys: inner_context(_sizes(keys)),
    "matmul_precision": lambda keys: _quantization(keys).get("matmul_precision"),
    "layers_in_16_bits": lambda keys: _quantization(keys).get("layers_in_16_bits"),
    "quantized_weights": lambda keys: _quantization(keys).get("quantized_weights"),
    "gradients_in_bf16": _gradients_in_bf16,
    "expert_parallel": CORE.expert_parallel,
    "expert_tensor_parallel": CORE.expert_tensor_parallel,
    "expert_dispatcher": CORE.expert_dispatcher,
    "offloaded_layers": _offloaded_layers,
    "pipeline_split": _pipeline_split,
    "first_stage_layers": lambda keys: (
        STAGE_LAYOUT.said(keys, "first") or keys.count("model.num_layers_in_first_pipeline_stage")
    ),
    "last_stage_layers": lambda keys: (
        STAGE_LAYOUT.said(keys, "last") or keys.count("model.num_layers_in_last_pipeline_stage")
    ),
    "expert_overlap": _expert_overlap,
    "cuda_graphs": _cuda_graphs,
}


def _key_value_heads(keys: Settings) -> int | None:
    name = "model.num_query_groups"
    return keys.count("model.num_attention_heads") if keys.is_null(name) else keys.count(name)


def _ffn_hidden_size(keys: Settings) -> int | None:
    """Null is 4 h."""
    hidden = keys.count("model.hidden_size") if keys.is_null("model.ffn_hidden_size") else None
    return 4 * hidden if hidden else keys.count("model.ffn_hidden_size")


def _vocab_size(keys: Settings) -> int | None:
    """The padded vocabulary; None where it depends on what the recipe says about padding."""
    size = keys.count("model.vocab_size")
    pads = keys.chosen("model.should_pad_vocab", SWITCH, None)
    multiple = keys.count("model.make_vocab_size_divisible_by") or _VOCABULARY_MULTIPLE
    if size is None or pads is False:
        return size
    tensor = _tensor_parallel(keys)
    padded = -(-size // (multiple * tensor)) * multiple * tensor if tensor else None
    return padded if pads or padded == size else None


def _head_size(keys: Settings) -> int | None:
    if CORE.is_latent(keys):
        return CORE.latent_head_size(keys)
    return head_size(keys, "model.kv_channels", "model.hidden_size", "model.num_attention_heads")


def _qkv_bias(keys: Settings) -> bool | None:
    """None where all linear layers have biases, those of queries, keys and values among them."""
    has_all = keys.chosen("model.add_bias_linear", SWITCH, _norm(keys) == "layernorm")
    return True if keys.has("model.add_qkv_bias") and not has_all else None


def activation_name(keys: Settings) -> str | None:
    """The name of the activation's function, without its module."""
    return (keys.text("model.activation_func") or "").rpartition(".")[2] or None


def _activation(keys: Settings) -> str | None:
    """None where it is the usual one, and for one that no model section has."""
    found = ACTIVATIONS.get(activation_name(keys) or "")
    is_gated = keys.chosen("model.gated_linear_unit", SWITCH, None)
    return None if is_gated is not None and found == ("silu" if is_gated else "gelu") else found


def _position_embedding(keys: Settings) -> str | None:
    return keys.chosen("model.position_embedding_type", _POSITIONS, None)


def _rotary_base(keys: Settings) -> int | None:
    """None where positions are learned. Where the recipe decides them, an override of the base says that they are
    rotary."""
    return None if _position_embedding(keys) == "learned" else rotary_base(keys, "model.rotary_base")


def _norm(keys: Settings) -> str | None:
    return keys.chosen("model.normalization", _NORMS, None)


def _linear_biases(keys: Settings) -> bool | None:
    return other_biases(keys.chosen("model.add_bias_linear", SWITCH, None), _norm(keys))


MODEL_FIELDS: FieldReaders = {
    "num_layers": lambda keys: keys.count("model.num_layers"),
    "hidden_size": lambda keys: keys.count("model.hidden_size"),
    "num_attention_heads": lambda keys: keys.count("model.num_attention_heads"),
    "num_key_value_heads": _key_value_heads,
    "ffn_hidden_size": _ffn_hidden_size,
    "gated_mlp": lambda keys: keys.chosen("model.gated_linear_unit", SWITCH, None),
    "vocab_size": _vocab_size,
    "seq_length": lambda keys: keys.count("dataset.seq_length", "dataset.sequence_length", "model.seq_length"),
    "tied_embeddings": lambda keys: keys.chosen("model.share_embeddings_and_output_weights", SWITCH, None),
    "position_embedding": _position_embedding,
    "norm": _norm,
    "attention_head_size": _head_size,
    "qkv_bias": _qkv_bias,
    "qk_norm": lambda keys: True if keys.has("model.qk_layernorm") and not CORE.is_latent(keys) else None,
    "activation": _activation,
    "rotary_base": _rotary_base,
    "linear_biases": _linear_biases,
    **CORE.model_fields,
}
BATCH_FIELDS: FieldReaders = {"global_batch_size": lambda keys: keys.count("train.global_batch_size")}


def _has_a_known_precision(keys: Settings) -> bool:
    given = keys.value("mixed_precision")
    if isinstance(given, Mapping):
        is_known = given.get("fp8_recipe", "tensorwise") in _RECIPES and given.get("fp4_recipe", "nvfp4") in _RECIPES
        first, last = _ends(given)
        return is_known and first == last and not given.get("fp8_dot_product_attention")
    return given in _PRECISIONS


def _recomputes_known_modules(keys: Settings) -> bool:
    is_full = keys.text("model.recompute_granularity") == "full"
    return is_full or recompute_modules(_listed_modules(keys)) is not None


def _captures_known_modules(keys: Settings) -> bool:
    return not keys.text("model.cuda_graph_impl") or _cuda_graphs(keys) is not None


VALUE_RULES: ValueRules = (
    ValueRule("model.moe_token_dispatcher_type", CORE.has_known_dispatcher, reasons.DISPATCHER),
    ValueRule("model.moe_flex_dispatcher_backend", CORE.has_known_dispatcher, reasons.DISPATCHER),
    *(ValueRule(name, _captures_known_modules, reasons.CUDA_GRAPHS) for name in GRAPH_MODULES),
    *STAGE_LAYOUT.rules,
    ValueRule(
        _TRANSPORT, lambda keys: context_transport(keys.listed(_TRANSPORT)) is not None, reasons.CONTEXT_TRANSPORT
    ),
    ValueRule(
        "model.hierarchical_context_parallel_sizes",
        lambda keys: inner_context(_sizes(keys)) is not None,
        reasons.CONTEXT_INNER,
    ),
    ValueRule(
        "mixed_precision",
        _has_a_known_precision,
        "precision is bf16 or fp16, with a recipe of matmul_precision and as many layers in 16 bits at both ends",
    ),
    one_of("model.position_embedding_type", _POSITIONS, reasons.MEGATRON_POSITIONS),
    one_of("model.normalization", _NORMS, reasons.NORM),
    one_of("model.attention_backend", KERNELS, reasons.ATTENTION_KERNEL),
    ValueRule(
        "model.recompute_modules",
        _recomputes_known_modules,
        reasons.MODULES,
    ),
    ValueRule("model.moe_layer_freq", CORE.has_known_layers, reasons.EXPERT_LAYERS),
    one_of("ddp.data_parallel_sharding_strategy", FSDP_STAGES, reasons.ZERO_STAGE),
    one_of("optimizer.optimizer_offload_fraction", ("1", "1.0"), reasons.WHOLE_OPTIMIZER),
)
