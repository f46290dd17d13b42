"""Import of a Hugging Face config.json as a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from orchestrator.importers.hf_experts import expert_fields, routing_differences
from orchestrator.importers.hf_families import FAMILIES, OTHER_EXPERTS, OTHER_MODELS, Family
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from orchestrator.importers.option_table import Handling
from orchestrator.importers.settings import (
    CODE,
    FieldReaders,
    Settings,
    ValueRule,
    ValueRules,
    flat,
    other_biases,
    read_fields,
)
from search_spaces.errors import InputError, format_value
from search_spaces.model_shape import DEFAULT_ROTARY_BASE, MODEL_DEFAULTS, ModelShape

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
    if problems := [*keys.problems(_VALUE_RULES)]:
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
    reason = _other_model(config, kind, known)
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


def _other_model(config: Mapping[str, Any], kind: Any, known: Family | None) -> str | None:
    """The reason why no model section describes this model."""
    has_experts = known is not None and "num_experts" in known.sizes
    if not has_experts and any(isinstance(config.get(name), int) and config[name] > 1 for name in _EXPERTS):
        return OTHER_EXPERTS
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
    """One for each head where the key is null or not used, and where the type has no other default."""
    if not _reads(keys, "num_key_value_heads"):
        return family.key_value_heads or _heads(keys, family)
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
        "attention_head_size": lambda keys: _head_size(keys, family),
        "activation": lambda keys: _activation(keys, family),
        "rotary_base": lambda keys: _rotary_base(keys, family),
        "linear_biases": lambda keys: _linear_biases(keys, family),
        "sliding_window": lambda keys: _sliding_window(keys, family),
        "full_attention_every": lambda keys: family.full_attention_every if _sliding_window(keys, family) else None,
        **{name: partial(_of_type, value=value) for name, value in family.features.items()},
        **expert_fields(family),
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


def _head_size(keys: Settings, family: Family) -> int | None:
    """None where it is hidden_size / num_attention_heads."""
    size = (keys.count("head_dim") if _reads(keys, "head_dim") else None) or family.head_size
    return None if size is None or size * _heads(keys, family) == _hidden_size(keys, family) else size


def _activation(keys: Settings, family: Family) -> str | None:
    """None where it is the usual one, and for one that no model section has."""
    found = _ACTIVATIONS.get(_hidden_activation(keys, family)[1])
    return None if found == ("silu" if family.is_gated else "gelu") else found


def _hidden_activation(keys: Settings, family: Family) -> tuple[str, str]:
    """(its key, its name)"""
    name = next(n for n in ("hidden_activation", "activation_function", "hidden_act") if _reads(keys, n))
    return name, keys.text(name) or family.activation


_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "gelu_python"), "gelu"),
    "relu": "relu",
    "relu2": "squared_relu",
}
"""Activations of transformers. `gelu` is exact there; trials have the tanh approximation of all of them."""


def _rotary_base(keys: Settings, family: Family) -> int | None:
    """The file has it at the top or among the parameters of the rotation; None where it is the usual one."""
    nested = [keys.value(name) for name in ("rope_parameters", "rope_scaling") if _reads(keys, name)]
    given = [each.get("rope_theta") for each in nested if isinstance(each, Mapping)]
    stated = [keys.value(name) for name in ("rope_theta", "rotary_emb_base") if _reads(keys, name)]
    base = next((each for each in (*given, *stated) if isinstance(each, (int, float))), family.rotary_base)
    return None if base == DEFAULT_ROTARY_BASE or base != int(base) else int(base)


def _linear_biases(keys: Settings, family: Family) -> bool | None:
    """True where attention and MLP have biases; None where it goes with the norm, and without keys for both."""
    both = ("attention_bias", "mlp_bias")
    if not all(_reads(keys, name) for name in both):
        return None
    return other_biases(all(keys.flag(name) for name in both), family.norm)


def _has_biases(keys: Settings, family: Family) -> bool:
    stated = _linear_biases(keys, family)
    return family.norm == "layernorm" if stated is None else stated


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
    if dropout := [f"{name} {keys.text(name) or default}" for name, default in _dropouts(keys, family)]:
        yield f"Trials train without dropout; the model has {', '.join(dropout)}."
    yield from _biases(keys, family)
    if _reads(keys, "use_parallel_residual") and keys.flag("use_parallel_residual", True):
        yield "The model adds attention and MLP in parallel; here they follow each other (equal parameters)."
    yield from _layer_differences(keys, family)
    yield from routing_differences(keys, family)


def _biases(keys: Settings, family: Family) -> Iterator[str]:
    """A note on biases of some linear layers only."""
    has_biases = _has_biases(keys, family)
    for name in ("attention_bias", "mlp_bias"):
        default = family.norm == "layernorm" and not _reads(keys, "mlp_bias")  # GPT-NeoX has them without a key
        if _reads(keys, name) and keys.flag(name, default) != has_biases:
            yield f"{name} was left out: all linear layers of a model have biases, or none has."


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
    name, activation = _hidden_activation(keys, family)
    if activation not in _ACTIVATIONS:
        yield f"{name} is {activation}; the MLP of trials has {'SiLU' if family.is_gated else 'GELU'}."
    if (window := _unsaid_window(keys, family)) is not None:
        yield (
            f"sliding_window was left out: tokens attend to the last {window} only, in some layers; trials attend to"
            " all, which is more work where seq_length is longer."
        )
    if family.position_embedding == "rotary" and (share := _rotated(keys, family)) != 1:
        yield f"The model rotates {share} of each head; trials rotate the whole head."
    for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        if _reads(keys, name) and (keys.value(name) or (name not in keys.given and default)):
            yield f"{name} was left out: trials compute these logits without a cap."


def _sliding_window(keys: Settings, family: Family) -> int | None:
    """The window of all layers, or of those that the type says; None where it is longer than any sequence."""
    window, longest = _window(keys, family), _size(keys, "positions", family.positions)
    is_shorter = window is not None and longest is not None and window < longest
    return window if is_shorter and not _has_other_layers(keys, family) else None


def _unsaid_window(keys: Settings, family: Family) -> int | None:
    """The window of layers that no model section can name."""
    window, longest = _window(keys, family), _size(keys, "positions", family.positions)
    return window if window and longest and window < longest and _has_other_layers(keys, family) else None


def _window(keys: Settings, family: Family) -> int | None:
    """Qwen's is off unless use_sliding_window is true."""
    if not _reads(keys, "sliding_window"):
        return None
    if _reads(keys, "use_sliding_window") and not keys.flag("use_sliding_window"):
        return None
    return keys.count("sliding_window") if "sliding_window" in keys.given else family.sliding_window


def _has_other_layers(keys: Settings, family: Family) -> bool:
    """True where the layers with a window are not those that the type says."""
    if not _reads(keys, "layer_types"):
        return False
    every, layers = family.full_attention_every, _size(keys, "num_layers", family.layers) or 0
    if kinds := keys.listed("layer_types"):
        usual = [bool(every) and (layer + 1) % (every or 1) == 0 for layer in range(layers)]
        return [kind == "full_attention" for kind in kinds] != usual
    return _reads(keys, "max_window_layers") and keys.value("max_window_layers") != 0


def _rotated(keys: Settings, family: Family) -> float:
    """The part of a head that is rotated; the file has it at the top or among the parameters of the rotation."""
    nested = [keys.value(name) for name in ("rope_parameters", "rope_scaling")]
    given = [each.get("partial_rotary_factor") for each in nested if isinstance(each, Mapping)]
    stated = [keys.value(name) for name in ("partial_rotary_factor", "rotary_pct") if _reads(keys, name)]
    return next((share for share in (*given, *stated) if isinstance(share, (int, float))), family.rotated)
