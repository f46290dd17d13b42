"""Import of a Hugging Face config.json as a model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import (
    CODE,
    DO_WITHOUT,
    EXPERT_LAYERS,
    NO_MODEL_FIELD,
    ROUTING,
    FileSettings,
    Setting,
    ValueRule,
    expert_pattern,
    flat,
)
from orchestrator.config.importers.source_file import json_object
from search_spaces.errors import InputError, Problem, format_value
from trials.trainers.table import Keys, Row, Table, fixed, number, switch


@dataclass(frozen=True)
class Family:
    """A model type: the keys that are read, with transformers' values of absent ones, and the fields of a model that
    the type itself decides.

    The keys of a nested mapping are dotted. `layer_types` is repeated up to the number of layers. `written` are the
    names that keys have in the type's files, as in transformers' attribute_map; a file may have either.
    """

    defaults: Mapping[str, Any]
    features: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, str] = field(default_factory=dict)


_OF_EVERY_TYPE = dict.fromkeys(("architectures", "dtype", "model_type", "torch_dtype"))
OTHER_TYPE = Family(_OF_EVERY_TYPE)
"""A model type that is not read."""
_NESTED_BASE = ("rope_parameters.rope_theta", "rope_scaling.rope_theta")
_NESTED_SHARE = ("rope_parameters.partial_rotary_factor", "rope_scaling.partial_rotary_factor")
ROTARY_BASE = (*_NESTED_BASE, "rotary_emb_base", "rope_theta")
ROTATED_SHARE = (*_NESTED_SHARE, "rotary_pct", "partial_rotary_factor")
"""Keys of the rotation, first the one that prevails."""
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings"),
)


def _rotary(*sizes: int, **others: Any) -> dict[str, Any]:
    """Defaults of a type with rotary positions."""
    rotation = {**dict.fromkeys(_NESTED_BASE + _NESTED_SHARE), "rope_theta": 10_000.0, "partial_rotary_factor": 1.0}
    usual = {"attention_dropout": 0.0, "hidden_act": "silu", "tie_word_embeddings": False}
    return {**_OF_EVERY_TYPE, **rotation, **usual, **dict(zip(_SIZES, sizes, strict=True)), **others}


def _grouped(*sizes: int, num_key_value_heads: int | None = None, head_dim: int | None = None, **others: Any) -> dict:
    """Defaults of a type with rotary positions and groups of heads."""
    return _rotary(*sizes, num_key_value_heads=num_key_value_heads, head_dim=head_dim, **others)


_LLAMA = {"position_embedding": "rotary", "norm": "rmsnorm", "gated_mlp": True}
_GPT_NEOX = {"position_embedding": "rotary", "norm": "layernorm", "gated_mlp": False}
_BIASES = {"attention_bias": False, "mlp_bias": False}
_QWEN_WINDOW = {"sliding_window": 4096, "use_sliding_window": False, "layer_types": None, "max_window_layers": 28}
_QWEN = _grouped(32, 4096, 32, 22016, 151936, 32768, num_key_value_heads=32, **_QWEN_WINDOW)
_EVERY_SECOND = ["sliding_attention", "full_attention"]

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_grouped(32, 4096, 32, 11008, 32000, 2048, **_BIASES), _LLAMA),
    "gpt2": Family(
        _OF_EVERY_TYPE
        | {**dict(zip(_SIZES, (12, 768, 12, None, 50257, 1024), strict=True)), "n_inner": None}
        | {"activation_function": "gelu_new", "tie_word_embeddings": True}
        | {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        {**_GPT_NEOX, "position_embedding": "learned"},
        {"num_hidden_layers": "n_layer", "hidden_size": "n_embd", "num_attention_heads": "n_head"}
        | {"max_position_embeddings": "n_positions"},
    ),
    "gpt_neox": Family(
        _rotary(44, 6144, 64, 24576, 50432, 2048, hidden_act="gelu", rotary_emb_base=10_000, rotary_pct=0.25)
        | {"attention_bias": True, "hidden_dropout": 0.0, "use_parallel_residual": True},
        _GPT_NEOX,
    ),
    "qwen2": Family(_QWEN, {**_LLAMA, "qkv_bias": True}),
    "qwen3": Family(_QWEN | {"head_dim": 128, "attention_bias": False}, {**_LLAMA, "qk_norm": True}),
    "mistral": Family(_grouped(32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, sliding_window=4096), _LLAMA),
    "gemma2": Family(
        _grouped(26, 2304, 8, 9216, 256000, 8192, num_key_value_heads=4, head_dim=256, attention_bias=False)
        | {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
        | {"sliding_window": 4096, "layer_types": _EVERY_SECOND},
        {**_LLAMA, "post_norms": True},
    ),
    "phi3": Family(
        _grouped(32, 3072, 32, 8192, 32064, 4096, sliding_window=None, embd_pdrop=0.0, resid_pdrop=0.0), _LLAMA
    ),
    "nemotron": Family(
        _grouped(32, 6144, 48, 24576, 256000, 4096, hidden_act="relu2", partial_rotary_factor=0.5, **_BIASES),
        _GPT_NEOX,
    ),
    "mixtral": Family(
        _grouped(32, 4096, 32, 14336, 32000, 131072, num_key_value_heads=8, rope_theta=1_000_000.0, sliding_window=None)
        | {"num_experts": 8, "num_experts_per_tok": 2},
        _LLAMA,
        {"num_experts": "num_local_experts"},
    ),
    "qwen3_moe": Family(
        _grouped(24, 2048, 32, 6144, 151936, 32768, num_key_value_heads=4, attention_bias=False)
        | {"sliding_window": 4096, "use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": None}
        | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": False},
        {**_LLAMA, "qk_norm": True},
        {"num_experts": "num_local_experts"},
    ),
    "gpt_oss": Family(
        _grouped(36, 2880, 64, 2880, 201088, 131072, num_key_value_heads=8, head_dim=64, rope_theta=150_000.0)
        | {"sliding_window": 128, "layer_types": _EVERY_SECOND, "attention_bias": True, "quantization_config": None}
        | {"num_experts": 128, "num_experts_per_tok": 4},
        {**_LLAMA, "linear_biases": True, "attention_sinks": True, "activation": "clamped_swiglu"},
        {"num_experts": "num_local_experts"},
    ),
    "deepseek_v3": Family(
        _rotary(61, 7168, 128, 18432, 129280, 4096, attention_bias=False, quantization_config=None)
        | {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
        | {"v_head_dim": 128, "first_k_dense_replace": 3, "num_mtp_layers": 1, "moe_intermediate_size": 2048}
        | {"num_local_experts": 256, "n_group": 8, "num_experts_per_tok": 8, "n_shared_experts": 1},
        _LLAMA,
        {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"},
    ),
}

_DECODER = "a model is a decoder, without an encoder and cross-attention"
_EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ANOTHER_MODEL: Mapping[str, str] = {
    **dict.fromkeys(("is_encoder_decoder", "add_cross_attention", "cross_attention_hidden_size"), _DECODER),
    **dict.fromkeys(("text_config", "vision_config", "audio_config"), "images and sound are no part of a model"),
    **dict.fromkeys(_EXPERT_KEYS, "experts of this model type are not read"),
    **dict.fromkeys(("*state_size", "*d_state", "lru_width"), "layers without attention are no part of a model"),
    "use_bidirectional_attention": "a model attends to earlier tokens only",
    "moe_layer_freq": EXPERT_LAYERS,
    **dict.fromkeys(("compression_config", "quantization_config"), "8-bit and 4-bit weights are no precision"),
    **dict.fromkeys(("per_layer_config", "pruned_heads"), NO_MODEL_FIELD),
}
"""Patterns of keys that no model section describes, with the reason. A type's own keys are none of them."""


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
