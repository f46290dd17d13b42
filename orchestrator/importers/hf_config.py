"""Import of a Hugging Face config.json as a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.differences import biases_of
from orchestrator.importers.hf_families import FAMILIES, OTHER_MODELS, Family
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from orchestrator.importers.option_table import DO_WITHOUT, Handling
from orchestrator.importers.settings import CODE, FieldReaders, Settings, ValueRule, ValueRules, flat, read_fields
from search_spaces.errors import InputError, Problem, format_value
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape

_VOCAB_MULTIPLE = 128
"""Megatron's --make-vocab-size-divisible-by: with it, tensor-parallel ranks up to 128 share the vocabulary evenly."""

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_PARTS = ("text_config", "vision_config", "audio_config")


def looks_like_hf(data: Mapping[str, Any]) -> bool:
    """True for a mapping that names a model type, as every config.json does."""
    return "model_type" in data


def read_hf_config(text: str) -> ImportedConfig:
    """The model that a config.json describes, and the precision of its weights, most likely that of its training.

    Absent keys have the model type's own defaults. The length of training is not in such a file, only the longest one
    that the model allows. InputError for anything but a JSON object, for a model type that a model section cannot
    describe, and for keys and values that no search file expresses.
    """
    config = json_object(text, CODE, "a config.json")
    family = _family(config)
    keys = Settings(flat(config, family.table, lambda name: None), family.table)
    if problems := [*keys.problems(_VALUE_RULES), *_head_size_problems(keys, family)]:
        raise InputError(*problems)
    model, origins = read_fields(keys, "model", _model_fields(family))
    _require_consistent_sizes(model)
    layout, layout_origins = read_fields(keys, "space", {"precision": _precision})
    return ImportedConfig(
        f"hugging face {family.kind}",
        model,
        layout,
        origins={**origins, **layout_origins},
        notes=tuple(dict.fromkeys([*keys.notes, *keys.left_out(), *_differences(keys, family)])),
    )


def _family(config: Mapping[str, Any]) -> Family:
    kind = config.get("model_type")
    known = FAMILIES.get(kind) if isinstance(kind, str) else None
    reason = _other_model(config, kind)
    if known is not None and reason is None:
        return known
    readable = f"the model types that can be read are {', '.join(FAMILIES)}"
    raise InputError.of(
        CODE,
        f"is {format_value(kind):.60}",
        key="model_type",
        value=kind,
        rule=readable if reason is None else f"{reason}; {readable}",
        fix="write the model section of the search file by hand",
    )


def _other_model(config: Mapping[str, Any], kind: Any) -> str | None:
    """The reason why no model section describes this model."""
    if any(isinstance(config.get(name), int) and config[name] > 1 for name in _EXPERTS):
        return "experts are no part of a model"
    if any(isinstance(config.get(name), Mapping) for name in _PARTS):
        return "images and sound are no part of a model"
    return OTHER_MODELS.get(kind) if isinstance(kind, str) else None


def _reads(keys: Settings, name: str) -> bool:
    """True if the model type has this key and it is read."""
    group = keys.table.group_of.get(name)
    return group is not None and group.handling is Handling.READ


def _size(keys: Settings, field: str, default: int | None) -> int | None:
    """The size, by the first of its keys that the model type has; `default` where the file has none."""
    names = [name for name in _KEYS[field] if _reads(keys, name)]
    return keys.counted(next((name for name in names if name in keys.given), names[0]), default)


_KEYS = {
    "num_layers": ("n_layer", "num_hidden_layers"),
    "hidden_size": ("n_embd", "hidden_size"),
    "num_attention_heads": ("n_head", "num_attention_heads"),
    "ffn_hidden_size": ("n_inner", "intermediate_size"),
    "positions": ("n_positions", "max_position_embeddings"),
}
"""Keys of each size: GPT-2's, and those of the other types, which GPT-2 takes as well."""


def _hidden_size(keys: Settings, family: Family) -> int:
    return _size(keys, "hidden_size", family.hidden_size) or family.hidden_size


def _heads(keys: Settings, family: Family) -> int:
    return _size(keys, "num_attention_heads", family.heads) or family.heads


def _key_value_heads(keys: Settings, family: Family) -> int:
    """One for each head where the key is null, and where the type has no other default."""
    is_null = "num_key_value_heads" in keys.given and keys.value("num_key_value_heads") is None
    given = keys.count("num_key_value_heads") or (None if is_null else family.key_value_heads)
    return given or _heads(keys, family)


def _vocab_size(keys: Settings, family: Family) -> int | None:
    """The padded vocabulary."""
    size = keys.counted("vocab_size", family.vocab_size)
    if size is None or size % _VOCAB_MULTIPLE == 0:
        return size
    padded = -(-size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
    keys.notes.append(f"vocab_size {size} was padded to {padded}, a multiple of {_VOCAB_MULTIPLE}.")
    return padded


def _model_fields(family: Family) -> FieldReaders:
    """Readers of all fields but seq_length: the file has only the longest sequence that the model allows."""
    return {
        "num_layers": lambda keys: _size(keys, "num_layers", family.layers),
        "hidden_size": lambda keys: _hidden_size(keys, family),
        "num_attention_heads": lambda keys: _heads(keys, family),
        "num_key_value_heads": lambda keys: _key_value_heads(keys, family),
        "ffn_hidden_size": lambda keys: (
            _size(keys, "ffn_hidden_size", family.ffn_hidden_size) or 4 * _hidden_size(keys, family)
        ),
        "gated_mlp": lambda keys: _of_type(keys, family.is_gated),
        "vocab_size": lambda keys: _vocab_size(keys, family),
        "tied_embeddings": lambda keys: keys.flag("tie_word_embeddings", family.tied),
        "position_embedding": lambda keys: _of_type(keys, family.position_embedding),
        "norm": lambda keys: _of_type(keys, family.norm),
    }


def _of_type(keys: Settings, value: Any) -> Any:
    """A value that the model type decides."""
    return value if keys.has("model_type") else None


def _require_consistent_sizes(model: Mapping[str, Any]) -> None:
    """InputError for sizes that contradict each other, where all are known but the length."""
    whole = {**model, "seq_length": 1}
    if whole.keys() >= {field.name for field in fields(ModelShape)} - MODEL_DEFAULTS.keys():
        ModelShape.from_json(whole)


def _precision(keys: Settings) -> str | None:
    """transformers calls it torch_dtype, and dtype since 4.56."""
    key = "dtype" if keys.has("dtype") else "torch_dtype"
    value = keys.value(key)
    if (precision := _PRECISIONS.get(str(value).removeprefix("torch."))) is None:
        found = "is not in the file" if value is None else f"{format_value(value):.40} is not a supported precision"
        keys.notes.append(f"{key} {found}: fp32 was assumed; set space.precision to the one you train in.")
    return precision


def _head_size_problems(keys: Settings, family: Family) -> Iterator[Problem]:
    """A problem for a head size that is not the usual one, given or by default."""
    hidden, heads = _hidden_size(keys, family), _heads(keys, family)
    given = keys.count("head_dim") if _reads(keys, "head_dim") else None
    size = given or family.head_size
    if size is None or size * heads == hidden:
        return
    if given:
        yield keys.problem("head_dim", reasons.HEAD_SIZE, DO_WITHOUT)
    else:
        default = f"is {family.head_size}, the default of {family.kind}"
        fix = f"set it to {hidden // heads} in a copy of the file if a search with it helps you"
        yield Problem(CODE, default, reasons.HEAD_SIZE, fix, key="head_dim", value=family.head_size)


def _is_language_model(keys: Settings) -> bool:
    """True unless an architecture is for another task, such as LlamaForSequenceClassification."""
    return not any(re.search(r"For(?!CausalLM)|DoubleHeads", str(name)) for name in keys.listed("architectures"))


_VALUE_RULES: ValueRules = (
    ValueRule(
        "architectures", _is_language_model, "a search trains a language model: ...ForCausalLM or ...LMHeadModel"
    ),
)


def _differences(keys: Settings, family: Family) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    yield _length(keys, family)
    yield from family.differences
    if dropout := [f"{name} {keys.text(name) or default}" for name, default in _dropouts(keys, family)]:
        yield f"Trials train without dropout; the model has {', '.join(dropout)}."
    for name, default in (("attention_bias", family.norm == "layernorm"), ("mlp_bias", False)):
        if _reads(keys, name) and keys.flag(name, default) != (family.norm == "layernorm"):
            yield f"{name} was left out: {biases_of(family.norm)}."
    if _reads(keys, "use_parallel_residual") and keys.flag("use_parallel_residual", True):
        yield "The model adds attention and MLP in parallel; here they follow each other (equal parameters)."
    yield from _layer_differences(keys, family)


def _length(keys: Settings, family: Family) -> str:
    positions, learned = _size(keys, "positions", family.positions), family.position_embedding == "learned"
    name = next(name for name in _KEYS["positions"] if _reads(keys, name))
    rows = ", the rows of its table of positions; here the table has seq_length rows" if learned else ""
    return f"The model allows up to {positions} positions ({name}){rows}: fill in the length that you train on."


def _dropouts(keys: Settings, family: Family) -> Iterator[tuple[str, float]]:
    for name, default in family.dropouts.items():
        value = keys.value(name)
        if (default if value is None else value) not in (0, 0.0):
            yield name, default


def _layer_differences(keys: Settings, family: Family) -> Iterator[str]:
    name = next(n for n in ("hidden_activation", "activation_function", "hidden_act") if _reads(keys, n))
    activation = keys.text(name) or family.activation
    usual, label = (("silu", "swish"), "SiLU") if family.is_gated else (("gelu",), "GELU")
    if not activation.startswith(usual):
        yield f"{name} is {activation}; the MLP of trials has {label}."
    window, longest = _sliding_window(keys, family), _size(keys, "positions", family.positions)
    if window and longest and window < longest:
        yield (
            f"sliding_window was left out: tokens attend to the last {window} only, in some or all layers; trials"
            " attend to all, which is more work where seq_length is longer."
        )
    if family.position_embedding == "rotary" and (share := _rotated(keys, family)) != 1:
        yield f"The model rotates {share} of each head; trials rotate the whole head."
    for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        if _reads(keys, name) and (keys.value(name) or (name not in keys.given and default)):
            yield f"{name} was left out: trials compute these logits without a cap."


def _sliding_window(keys: Settings, family: Family) -> int | None:
    """The window of the layers that have one; Qwen's is off unless use_sliding_window is true."""
    if not _reads(keys, "sliding_window"):
        return None
    if _reads(keys, "use_sliding_window") and not keys.flag("use_sliding_window"):
        return None
    return keys.count("sliding_window") if "sliding_window" in keys.given else family.sliding_window


def _rotated(keys: Settings, family: Family) -> float:
    """The part of a head that is rotated; the file has it at the top or among the parameters of the rotation."""
    nested = [keys.value(name) for name in ("rope_parameters", "rope_scaling")]
    given = [each.get("partial_rotary_factor") for each in nested if isinstance(each, Mapping)]
    stated = [keys.value(name) for name in ("partial_rotary_factor", "rotary_pct") if _reads(keys, name)]
    return next((share for share in (*given, *stated) if isinstance(share, (int, float))), family.rotated)
