"""Model and layout, read from GPT-NeoX's keys."""

from __future__ import annotations

from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.deepspeed_config import DEEPSPEED_RULES
from orchestrator.importers.deepspeed_config import LAYOUT_FIELDS as OF_DEEPSPEED
from orchestrator.importers.settings import (
    SWITCH,
    FieldReaders,
    Settings,
    ValueRule,
    ValueRules,
    one_of,
    positive,
    rotary_base,
)
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, layout_mesh
from trials.trainers.common.deepspeed_config import DEFAULT_BUCKET_ELEMENTS, GRADIENT_BYTES

GATED = ("bilinear", "geglu", "glu", "reglu", "swiglu")
_ACTIVATIONS = (*GATED, "gelu", "relu", "softsign", "swish", "mish", "silu")
_VOCABULARIES = {"gpt2bpetokenizer": 50257, "hfgpt2tokenizer": 50257, "charleveltokenizer": 512}
_NORMS = {"layernorm": "layernorm", "rmsnorm": "rmsnorm", "te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}
_POSITIONS = {"learned": "learned", "rotary": "rotary"}
_PRECISIONS = {"fp32": "fp32", "bfloat16": "bf16", "fp16": "fp16"}
_KERNELS = {"flash": "flash", "global": "math"}


_REQUIRED_KEYS = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
_BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu")


def missing_keys(keys: Settings) -> list[str]:
    """Keys that GPT-NeoX requires and the file lacks; another file of the training has it."""
    given = {name for name, setting in keys.given.items() if setting.value is not None}
    missing = [name for name in _REQUIRED_KEYS if name not in given]
    return missing if given & {*_BATCH_KEYS} else [*missing, " or ".join(_BATCH_KEYS)]


# -- the model


def _ffn_hidden_size(keys: Settings) -> int | None:
    """The MLP's width as ParallelMLP of megatron/model/transformer.py computes it.

    Gate and gated part together have two thirds of the intermediate size, each rounded up to mlp_multiple_of.
    """
    width, is_gated, multiple = _intermediate_size(keys), _is_gated(keys), keys.counted("mlp_multiple_of", 1)
    if width is None or keys.has("te_layernorm_mlp"):
        return width
    if is_gated is None or multiple is None:
        return None
    part = int(width * 2 / 3) // 2 if is_gated else width
    return -(-part // multiple) * multiple


def _intermediate_size(keys: Settings) -> int | None:
    if keys.has("intermediate_size"):
        return keys.count("intermediate_size")
    hidden = keys.count("hidden_size")
    factor = keys.value("expansion_factor")
    if keys.has("expansion_factor"):
        return int(factor * hidden) if hidden and factor else None
    return 4 * hidden if hidden else None


def _is_gated(keys: Settings) -> bool | None:
    return keys.chosen("activation", {name: name in GATED for name in _ACTIVATIONS}, False)


def _vocab_size(keys: Settings) -> int | None:
    """The tokenizer's vocabulary, padded to a multiple of make_vocab_size_divisible_by times the tensor degree."""
    tokenizer = keys.text("tokenizer_type")
    is_open = tokenizer is None and missing_keys(keys)
    size = None if is_open else _VOCABULARIES.get((tokenizer or "GPT2BPETokenizer").lower())
    multiple, tensor = keys.counted("make_vocab_size_divisible_by", 128), _tensor_parallel(keys)
    if size is None or multiple is None or tensor is None:
        keys.notes.append("vocab_size is not in the file: the tokenizer decides it.")
        return None
    which = tokenizer or "GPT-NeoX's default tokenizer, that of GPT-2,"
    keys.notes.append(f"vocab_size: {size} of {which} was taken, padded as GPT-NeoX pads it.")
    return -(-size // (multiple * tensor)) * multiple * tensor


def _rotary_base(keys: Settings) -> int | None:
    is_rotary = keys.chosen("pos_emb", _POSITIONS, "learned") == "rotary"
    return rotary_base(keys, "rotary_emb_base") if is_rotary else None


MODEL_FIELDS: FieldReaders = {
    "num_layers": lambda keys: keys.count("num_layers"),
    "hidden_size": lambda keys: keys.count("hidden_size"),
    "num_attention_heads": lambda keys: keys.count("num_attention_heads"),
    "num_key_value_heads": lambda keys: keys.count("num_kv_heads", "num_attention_heads"),
    "ffn_hidden_size": _ffn_hidden_size,
    "gated_mlp": _is_gated,
    "vocab_size": _vocab_size,
    "seq_length": lambda keys: keys.count("seq_length"),
    "tied_embeddings": lambda keys: keys.chosen("no_weight_tying", {"true": False, "false": True}, True),
    "position_embedding": lambda keys: keys.chosen("pos_emb", _POSITIONS, "learned"),
    "norm": lambda keys: keys.chosen("norm", _NORMS, "layernorm"),
    "rotary_base": _rotary_base,
}

# -- the layout


def _tensor_parallel(keys: Settings) -> int | None:
    return _degree(keys, "model_parallel_size")


def _pipeline_parallel(keys: Settings) -> int | None:
    """0 is one stage without DeepSpeed's pipeline engine."""
    return _degree(keys, "pipe_parallel_size")


def _degree(keys: Settings, name: str) -> int | None:
    return 1 if keys.value(name) == 0 else keys.counted(name, 1)


def _data_parallel(keys: Settings) -> int | None:
    """The ranks that are left, else those that follow from the batch."""
    world, tensor, pipeline = keys.count("global_num_gpus"), _tensor_parallel(keys), _pipeline_parallel(keys)
    if world and tensor and pipeline:
        replica = layout_mesh({"tensor_parallel": tensor, "pipeline_parallel": pipeline}).without("dp")
        return _quotient(keys, "global_num_gpus", world, replica.world_size, WORLD_RULE)
    total, micro, steps = _batch_numbers(keys)
    return _quotient(keys, "train_batch_size", total, micro * steps, BATCH_RULE) if total and micro and steps else None


def _micro_batch_size(keys: Settings) -> int | None:
    """Without the key what the other numbers leave."""
    stated = keys.count("train_micro_batch_size_per_gpu")
    if stated or not keys.has("global_num_gpus"):
        return stated
    total, _, steps = _batch_numbers(keys)
    data = _data_parallel(keys) if total and steps else None
    return _quotient(keys, "train_batch_size", total, data * steps, BATCH_RULE) if total and steps and data else None


def _batch_numbers(keys: Settings) -> tuple[int | None, int | None, int | None]:
    """(global batch, micro-batch, accumulation). GPT-NeoX accumulates one micro-batch unless told otherwise."""
    total, micro = keys.count("train_batch_size"), keys.count("train_micro_batch_size_per_gpu")
    return total, micro, _grad_accum_steps(keys)


def _grad_accum_steps(keys: Settings) -> int | None:
    name = "gradient_accumulation_steps"
    return None if keys.is_null(name) else keys.counted(name, 1)


def _quotient(keys: Settings, name: str, whole: int, part: int, rule: str) -> int:
    if whole % part:
        raise InputError(keys.problem(name, rule, fix=f"a multiple of {part}"))
    return whole // part


def _precision(keys: Settings) -> str | None:
    """`precision`, else that of the section that is enabled."""
    if keys.has("precision"):
        return keys.chosen("precision", _PRECISIONS, None)
    enabled = [name for name in ("fp16", "bf16") if keys.chosen(f"{name}.enabled", SWITCH, False)]
    return enabled[0] if enabled else "fp32"


def _attention_types(keys: Settings) -> list[str]:
    """The kinds of attention in the model, each once."""
    if keys.value("attention_config") is None:
        return ["global"]
    found: list[Any] = []
    for item in keys.listed("attention_config"):
        found += item[0] if isinstance(item, list) and item and isinstance(item[0], list) else [item]
    return list(dict.fromkeys(str(kind) for kind in found))


def _attention_kernel(keys: Settings) -> str | None:
    if keys.has("te_mha"):
        return "math" if _precision(keys) == "fp32" else "flash"
    return _KERNELS[_attention_types(keys)[0]]


def _bucket_mib(keys: Settings) -> int | None:
    elements = keys.value("zero_optimization.reduce_bucket_size")
    width = GRADIENT_BYTES.get(_precision(keys) or "")
    if not elements or elements == DEFAULT_BUCKET_ELEMENTS or width is None:
        return None
    return max(1, round(elements * width / 2**20))


LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": _tensor_parallel,
    "pipeline_parallel": _pipeline_parallel,
    "data_parallel": _data_parallel,
    "micro_batch_size": _micro_batch_size,
    "grad_accum_steps": _grad_accum_steps,
    "zero_stage": OF_DEEPSPEED["zero_stage"],
    "offload": OF_DEEPSPEED["offload"],
    "activation_checkpointing": lambda keys: keys.chosen(
        "checkpoint_activations", {"true": "full", "false": "none"}, "none"
    ),
    "sequence_parallel": lambda keys: keys.chosen("sequence_parallel", SWITCH, False),
    "precision": _precision,
    "attention_kernel": _attention_kernel,
    "overlap_comm": OF_DEEPSPEED["overlap_comm"],
    "bucket_mib": _bucket_mib,
}

# -- the batch and the cluster


def _num_nodes(keys: Settings) -> int | None:
    stated, world, gpus = _limit(keys, "num_nodes"), keys.count("global_num_gpus"), _limit(keys, "num_gpus")
    return world // gpus if stated is None and world and gpus and world % gpus == 0 else stated


def _limit(keys: Settings, name: str) -> int | None:
    """A number of nodes or of GPUs; -1, like any other below 1, stands for all that there are."""
    value = keys.value(name)
    return None if isinstance(value, int) and value < 1 else keys.count(name)


BATCH_FIELDS: FieldReaders = {"global_batch_size": lambda keys: keys.count("train_batch_size")}
CLUSTER_FIELDS: FieldReaders = {"num_nodes": _num_nodes, "gpus_per_node": lambda keys: _limit(keys, "num_gpus")}

# -- values that no search file expresses


def _has_one_kernel(keys: Settings) -> bool:
    types = _attention_types(keys)
    return len(types) == 1 and types[0] in _KERNELS


def _has_equal_stages(keys: Settings) -> bool:
    method = str(keys.value("pipe_partition_method")).lower()
    return _pipeline_parallel(keys) == 1 or method.startswith("type:")


def _agrees_on_the_precision(keys: Settings) -> bool:
    enabled = [name for name in ("fp16", "bf16") if keys.chosen(f"{name}.enabled", SWITCH, False)]
    return all(_precision(keys) in (None, name) for name in enabled)


VALUE_RULES: ValueRules = (
    one_of("activation", _ACTIVATIONS, "GPT-NeoX has the activations " + ", ".join(_ACTIVATIONS)),
    positive("expansion_factor", "a number above 0"),
    one_of("pos_emb", _POSITIONS, reasons.POSITION_EMBEDDING),
    one_of("norm", _NORMS, reasons.NORM),
    one_of("precision", _PRECISIONS, reasons.PRECISION),
    ValueRule("precision", _agrees_on_the_precision, "precision and the sections fp16 and bf16 name one precision"),
    ValueRule(
        "attention_config",
        _has_one_kernel,
        "attention_kernel is math (global) or flash in all layers; other attention is no part of a model",
    ),
    *(rule for rule in DEEPSPEED_RULES if rule.name.startswith(("zero_optimization.", "optimizer."))),
    ValueRule("pipe_partition_method", _has_equal_stages, reasons.UNEVEN_STAGES),
)
