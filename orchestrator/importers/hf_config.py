"""Import of a Hugging Face config.json as a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from search_spaces.errors import InputError, format_value

VOCAB_MULTIPLE = 128
"""Megatron's --make-vocab-size-divisible-by: with it, tensor-parallel ranks up to 128 share the vocabulary evenly."""


def read_hf_config(text: str) -> ImportedConfig:
    """The model that a config.json describes, and the precision of its weights, most likely that of its training.

    `seq_length` is the longest sequence the model takes. InputError for anything but a JSON object, and for an
    unsupported model type.
    """
    config = json_object(text, "hf_config", "a config.json")
    kind = config.get("model_type")
    if kind not in _READERS:
        raise InputError.of(
            "hf_config",
            f"model_type is {format_value(kind)}",
            key="model_type",
            value=kind,
            rule="the model types that can be read are " + ", ".join(_READERS),
            fix="write the model section of the search file by hand",
        )
    notes: list[str] = []
    model = _READERS[kind](config, notes)
    _pad_vocabulary(model, notes)
    missing = [name for name, value in model.items() if value is None]
    notes += [f"{name} is not in the config." for name in missing]
    layout = _precision(config, notes)
    return ImportedConfig(
        f"hugging face {kind}", {n: v for n, v in model.items() if v is not None}, layout, notes=tuple(notes)
    )


def _gpt2(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    hidden, heads = _count(config, "n_embd"), _count(config, "n_head")
    return {
        "num_layers": _count(config, "n_layer"),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "ffn_hidden_size": _count(config, "n_inner") or (4 * hidden if hidden else None),
        "gated_mlp": False,
        "vocab_size": _count(config, "vocab_size"),
        "seq_length": _count(config, "n_positions") or _count(config, "n_ctx"),
        "tied_embeddings": _flag(config, "tie_word_embeddings", default=True),
        "position_embedding": "learned",
        "norm": "layernorm",
    }


def _llama(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    if _flag(config, "attention_bias", default=False) or _flag(config, "mlp_bias", default=False):
        notes.append("The config has biases, which a model with rmsnorm does not have here; they were left out.")
    sizes = _sizes(config)
    head_size = _count(config, "head_dim")
    if head_size and sizes["hidden_size"] and head_size * (sizes["num_attention_heads"] or 0) != sizes["hidden_size"]:
        notes.append(
            f"head_dim {head_size} is not hidden size / heads, which the model section cannot express; it was left out."
        )
    return sizes | {
        "num_key_value_heads": _count(config, "num_key_value_heads") or sizes["num_attention_heads"],
        "gated_mlp": True,
        "tied_embeddings": _flag(config, "tie_word_embeddings", default=False),
        "position_embedding": "rotary",
        "norm": "rmsnorm",
    }


def _gpt_neox(config: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    if _flag(config, "use_parallel_residual", default=True):
        notes.append("The config adds attention and MLP in parallel; here they follow each other (equal parameters).")
    sizes = _sizes(config)
    return sizes | {
        "num_key_value_heads": sizes["num_attention_heads"],
        "gated_mlp": False,
        "tied_embeddings": _flag(config, "tie_word_embeddings", default=False),
        "position_embedding": "rotary",
        "norm": "layernorm",
    }


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that Llama and GPT-NeoX name alike."""
    names = {
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_attention_heads": "num_attention_heads",
        "ffn_hidden_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "seq_length": "max_position_embeddings",
    }
    return {ours: _count(config, theirs) for ours, theirs in names.items()}


_READERS: dict[str, Callable[[Mapping[str, Any], list[str]], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "gpt_neox": _gpt_neox,
}


def _pad_vocabulary(model: dict[str, Any], notes: list[str]) -> None:
    size = model["vocab_size"]
    if size is None or size % VOCAB_MULTIPLE == 0:
        return
    model["vocab_size"] = -(-size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    notes.append(f"vocab_size {size} was padded to {model['vocab_size']}, a multiple of {VOCAB_MULTIPLE}.")


def _precision(config: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """transformers calls it torch_dtype, and dtype since 4.56."""
    key = "torch_dtype" if config.get("dtype") is None else "dtype"
    value = config.get(key)
    if (precision := _PRECISIONS.get(str(value).removeprefix("torch."))) is not None:
        return {"precision": precision}
    found = "is not in the config" if value is None else f"{format_value(value):.40} is not a supported precision"
    notes.append(f"{key} {found}: fp32 was assumed; set space.precision to the one you train in.")
    return {}


_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def _count(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None or (type(value) is int and value >= 1):
        return value
    raise InputError.of(
        "hf_config", f"{key} is {format_value(value)}", key=key, value=value, rule="a whole number of at least 1"
    )


def _flag(config: Mapping[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if type(value) is not bool:
        raise InputError.of("hf_config", f"{key} is {format_value(value)}", key=key, value=value, rule="true or false")
    return value
