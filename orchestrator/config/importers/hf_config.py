"""Import of a Hugging Face config.json as a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.expert_layers import EXPERT_LAYERS, ROUTING, expert_pattern
from orchestrator.config.importers.hf_families import (
    ANOTHER_MODEL,
    FAMILIES,
    OTHER_TYPE,
    ROTARY_BASE,
    ROTATED_SHARE,
    Family,
)
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.json_text import json_object
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import CODE, DO_WITHOUT, FileSettings, Setting, ValueRule, flat
from search_spaces.errors import InputError, Problem, format_value
from trials.trainers.table import Keys, Row, Table, fixed, number, switch

_VOCAB_MULTIPLE = 128
"""Megatron's --make-vocab-size-divisible-by: with it, tensor-parallel ranks up to 128 share the vocabulary evenly."""
_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "gelu_python"), "gelu"),
    "relu": "relu",
    "relu2": "squared_relu",
}
"""Activations of transformers. `gelu` is exact there; trials have the tanh approximation of all of them."""


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
    kind = config.get("model_type")
    family = FAMILIES.get(kind, OTHER_TYPE) if isinstance(kind, str) else OTHER_TYPE
    table, keys, others = _settings(str(kind), family, config)
    problems = [*keys.problems((_LANGUAGE_MODEL,))]
    if family is OTHER_TYPE:
        raise _other_type(kind, problems)
    if problems:
        raise InputError(*problems)
    read = read_rows(table, keys)
    notes = [*_differences(keys, read.model), *others.not_read()]
    return read.imported(f"hugging face {kind}", keys, notes, engine="deepspeed")


def _settings(kind: str, family: Family, config: Mapping[str, Any]) -> tuple[Table, FileSettings, FileSettings]:
    """(the type's rows and keys of other models; the type's own keys, with its defaults, and keys of other models; all
    keys but its own)"""
    names = {written: name for name, written in family.written.items()}
    another = {name: reason for name, reason in ANOTHER_MODEL.items() if name not in {*family.defaults, *names}}
    whole = frozenset(config) - {name.partition(".")[0] for name in family.defaults if "." in name}
    rows = (*(row for row in _ROWS if row.field not in family.features), *fixed(**family.features))
    table = Table(kind, "in transformers 5.23", rows, another, whole)
    found = flat(config, table, lambda name: None)
    absent = {
        name: Setting(value, origin=f"{kind}'s default", key=family.written.get(name))
        for name, value in family.defaults.items()
        if value is not None
    }
    given = {name: each for name, each in found.items() if name in family.defaults or table.refusal(name)}
    prevailing = {names[name]: replace(each, key=name) for name, each in found.items() if name in names}
    others = {
        name: each
        for name, each in found.items()
        if name not in names and (name not in family.defaults or name in prevailing)
    }
    return table, FileSettings({**absent, **given, **prevailing}, table), FileSettings(others, table)


_LANGUAGE_MODEL = ValueRule(
    "architectures",
    lambda keys: not re.search(r"For(?!CausalLM)|DoubleHeads", str(keys.listed("architectures"))),
    "a model is a decoder that predicts the next token: ...ForCausalLM or ...LMHeadModel",
)


def _other_type(kind: Any, problems: list[Problem]) -> InputError:
    """The refusal of a model type that is not read, with the reasons that the file's other keys give."""
    readable = f"the model types that can be read are {', '.join(FAMILIES)}"
    return InputError.of(
        CODE,
        f"is {format_value(kind):.60}",
        key="model_type",
        value=kind,
        rule="; ".join(dict.fromkeys([*(str(problem.rule) for problem in problems), readable])),
        fix="write the model section of the search file by hand",
    )


_POSITIONS = "max_position_embeddings"


def _first(keys: Keys, names: tuple[str, ...]) -> str | None:
    """The first of these keys that the model type or the file gives a value."""
    return next((name for name in names if keys.value(name) is not None), None)


def _ffn_hidden_size(keys: Keys) -> int | None:
    given, hidden = keys.count("intermediate_size", "n_inner"), keys.count("hidden_size")
    return given or (4 * hidden if hidden else None)


def _vocab_size(keys: Keys) -> int | None:
    """The padded vocabulary."""
    size = keys.count("vocab_size")
    if size is None or size % _VOCAB_MULTIPLE == 0:
        return size
    padded = -(-size // _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE
    keys.notes.append(f"vocab_size {size} was padded to {padded}, a multiple of {_VOCAB_MULTIPLE}.")
    return padded


def _head_size(keys: Keys) -> int | None:
    """Elements of a query; in latent attention some are rotated, and the others are not."""
    rotated, others = keys.count("qk_rope_head_dim"), keys.count("qk_nope_head_dim")
    return rotated + others if rotated and others else keys.count("head_dim")


def _activation(keys: Keys) -> str | None:
    name = _first(keys, ("hidden_activation", "activation_function", "hidden_act")) or "hidden_act"
    word = keys.text(name) or ""
    if word and word not in _ACTIVATIONS:
        keys.notes.append(f"{name} is {word}; the MLP of trials has SiLU where it is gated, and GELU elsewhere.")
    return _ACTIVATIONS.get(word)


def _linear_biases(keys: Keys) -> bool | None:
    """True where attention and MLP have biases; None without keys for both."""
    both = ("attention_bias", "mlp_bias")
    return all(keys.flag(name) for name in both) if keys.given.keys() >= {*both} else None


def _windows(keys: Keys) -> tuple[int | None, int | None]:
    """(sliding_window, full_attention_every). A window as long as any sequence has no effect; Qwen's is off unless
    use_sliding_window is true."""
    is_off = "use_sliding_window" in keys.given and not keys.flag("use_sliding_window")
    window, longest, every = keys.count("sliding_window"), keys.count(_POSITIONS), _full_attention_every(keys)
    if is_off or window is None or longest is None or window >= longest or every == 1:
        return None, None
    if every is None:
        keys.notes.append(
            f"sliding_window {window} was left out, which is more work: no number says which layers have it."
        )
        return None, None
    return window, every or None


def _full_attention_every(keys: Keys) -> int | None:
    """Which layers have no window: each one of so many, none with 0; None where no number says it."""
    kinds = keys.listed("layer_types")
    if not kinds:
        first, layers = keys.whole("max_window_layers") or 0, keys.count("num_hidden_layers") or 0
        return 0 if first == 0 else 1 if first >= layers else None
    is_full = [kind == "full_attention" for kind in kinds]
    every = is_full.index(True) + 1 if True in is_full else 0
    return every if is_full == [every > 0 and (layer + 1) % every == 0 for layer in range(len(kinds))] else None


def _shared_width(keys: Keys) -> int | None:
    num_experts, width = keys.whole("n_shared_experts"), keys.count("moe_intermediate_size")
    return num_experts * width if num_experts and width else None


def _expert_layers(keys: Keys) -> tuple[int | None, int | None]:
    """(num_dense_layers, expert_layer_every): Qwen's mlp_only_layers have an MLP; of the others each
    decoder_sparse_step-th has experts."""
    step, layers = keys.count("decoder_sparse_step"), keys.count("num_hidden_layers")
    if not step or not layers:
        return keys.whole("first_k_dense_replace"), None
    dense = keys.listed("mlp_only_layers")
    pattern = expert_pattern([layer not in dense and (layer + 1) % step == 0 for layer in range(min(layers, 10_000))])
    if pattern is None:
        raise InputError(keys.problem("mlp_only_layers", EXPERT_LAYERS, DO_WITHOUT))
    return pattern


def _precision(keys: Keys) -> str | None:
    """transformers calls it torch_dtype, and dtype since 4.56."""
    key = "dtype" if keys.has("dtype") else "torch_dtype"
    value = keys.value(key)
    precision = _PRECISIONS.get(str(value).removeprefix("torch."))
    if precision is None and not keys.is_in_doubt(key):
        found = "is not in the file" if value is None else f"{format_value(value):.40} is not a supported precision"
        keys.notes.append(f"{key} {found}: fp32 was assumed; set space.precision to the one you train in.")
    return precision


_ROWS = (
    number("num_layers", "num_hidden_layers"),
    number("hidden_size", "hidden_size"),
    number("num_attention_heads", "num_attention_heads"),
    number("num_key_value_heads", "num_key_value_heads", instead=("num_attention_heads",)),
    Row("ffn_hidden_size", read=_ffn_hidden_size),
    Row("vocab_size", read=_vocab_size),
    switch("tied_embeddings", "tie_word_embeddings"),
    Row("attention_head_size", read=_head_size),
    Row("activation", read=_activation),
    Row("rotary_base", read=lambda keys: keys.whole(_first(keys, ROTARY_BASE) or "rope_theta")),
    Row("linear_biases", read=_linear_biases),
    Row("sliding_window", read=lambda keys: _windows(keys)[0]),
    Row("full_attention_every", read=lambda keys: _windows(keys)[1]),
    number("num_experts", "num_experts", instead=("num_local_experts",)),
    number("experts_per_token", "num_experts_per_tok"),
    number("expert_ffn_hidden_size", "moe_intermediate_size"),
    Row("shared_expert_ffn_hidden_size", read=_shared_width),
    Row("num_dense_layers", read=lambda keys: _expert_layers(keys)[0]),
    Row("expert_layer_every", read=lambda keys: _expert_layers(keys)[1]),
    number("key_value_latent_size", "kv_lora_rank"),
    number("query_latent_size", "q_lora_rank"),
    number("rotary_head_size", "qk_rope_head_dim"),
    number("value_head_size", "v_head_dim"),
    Row("num_mtp_layers", read=lambda keys: keys.whole("num_mtp_layers")),
    Row("precision", read=_precision),
)
"""Fields that keys decide. seq_length is not in the file, only the longest one that the model allows."""

_DIFFERENCES = {
    "use_parallel_residual": "the model adds attention and MLP in parallel; here they follow each other",
    "attn_logit_softcapping": "trials compute these logits without a cap",
    "final_logit_softcapping": "trials compute these logits without a cap",
    "n_group": f"the model weights experts by sigmoids, in groups and with a bias; here {ROUTING}",
    "quantization_config": "it is the format of the published weights, not of the training",
}
"""What the model has and a trial has not, by the key that says so where it is on."""
_DROPOUTS = ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop")


def _differences(keys: FileSettings, model: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    if longest := keys.count(_POSITIONS):
        name = keys.key(_POSITIONS)
        yield f"The model allows up to {longest} positions ({name}): fill in the length that you train on."
    yield from (f"{name} was left out: {reason}." for name, reason in _DIFFERENCES.items() if keys.has(name))
    if dropout := [f"{name} {keys.text(name)}" for name in _DROPOUTS if keys.has(name)]:
        yield f"Trials train without dropout; the model has {', '.join(dropout)}."
    for name in ("attention_bias", "mlp_bias"):
        if name in keys.given and keys.flag(name) != model.get("linear_biases", model.get("norm") == "layernorm"):
            yield f"{name} was left out: all linear layers of a model have biases, or none has."
    share = _first(keys, ROTATED_SHARE)
    if share is not None and keys.text(share) not in ("1", "1.0"):
        yield f"The model rotates {keys.text(share)} of each head; trials rotate the whole head."
    if "norm_topk_prob" in keys.given and not keys.flag("norm_topk_prob"):
        yield "norm_topk_prob is false: the softmax is over all experts; that of trials is over the chosen ones."
