"""The model section, read from Megatron's options."""

from __future__ import annotations

import re

from orchestrator.importers.megatron.expert_fields import CoreFields
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.settings import FieldReaders, Settings, head_size, other_biases, rotary_base
from search_spaces.errors import InputError

_GPT2_VOCAB_SIZE = 50257
_GPT2_TOKENIZER = "GPT2BPETokenizer"
"""The default of pretrain_gpt.py of both Megatrons."""
_SIZED_TOKENIZERS = ("NullTokenizer", "NullMultimodalTokenizer", "TikTokenizer")
"""Tokenizers whose size is --vocab-size; others have that of their files."""


CORE = CoreFields(lambda name: name.replace("_", "-"), has_defaults=True)
CLAMPED = {"glu-linear-offset": 1.0, "activation-func-clamp-value": 7.0}
"""Options with which --quick-geglu is gpt-oss' activation."""


def is_megatron_deepspeed(options: Settings) -> bool:
    return options.table.trainer == MEGATRON_DEEPSPEED_OPTIONS.trainer


def num_layers(options: Settings) -> int | None:
    return options.count("num-layers", "encoder-num-layers")


def degree(options: Settings, axis: str) -> int:
    """Tensor-parallel ranks or pipeline stages."""
    return options.count(f"{axis}-model-parallel-size") or 1


def _norm(options: Settings) -> str:
    return "rmsnorm" if (options.text("normalization") or "").lower() == "rmsnorm" else "layernorm"


def _position_embedding(options: Settings) -> str:
    is_rotary = options.text("position-embedding-type") == "rope" or options.has("use-rotary-position-embeddings")
    return "rotary" if is_rotary else "learned"


def _rotary_base(options: Settings) -> int | None:
    if _position_embedding(options) == "learned":
        return None
    return rotary_base(options, "rotary-position-embeddings-theta" if is_megatron_deepspeed(options) else "rotary-base")


def _linear_biases(options: Settings) -> bool | None:
    return other_biases(not options.has("disable-bias-linear"), _norm(options))


def _qkv_bias(options: Settings) -> bool | None:
    """None where all linear layers have biases, those of queries, keys and values among them."""
    return True if options.has("add-qkv-bias") and options.has("disable-bias-linear") else None


def _key_value_heads(options: Settings) -> int | None:
    """Megatron-LM counts query groups, by default one, and only with --group-query-attention; Megatron-DeepSpeed counts
    the heads."""
    if options.has("group-query-attention"):
        return options.counted("num-query-groups", 1)
    return options.count("num-key-value-heads", "num-attention-heads")


def _ffn_hidden_size(options: Settings) -> int | None:
    """Without the option 4 h, and with SwiGLU two thirds of it in steps of 64."""
    stated = options.count("ffn-hidden-size")
    hidden = None if options.has("ffn-hidden-size") else options.count("hidden-size")
    if hidden is None:
        return stated
    return int(4 * hidden * 2 / 3 / 64) * 64 if options.has("swiglu") else 4 * hidden


def _vocab_size(options: Settings) -> int | None:
    """The padded vocabulary: a multiple of --make-vocab-size-divisible-by (128) times the tensor degree."""
    stated = options.count("padded-vocab-size")
    if stated:
        return stated
    size = _num_tokens(options)
    if size is None or options.has("no-pad-vocab-size", "disable-pad-vocab-size"):
        return size
    multiple = (options.count("make-vocab-size-divisible-by") or 128) * degree(options, "tensor")
    return -(-size // multiple) * multiple


def _num_tokens(options: Settings) -> int | None:
    """The tokenizer's vocabulary."""
    tokenizer = options.text("tokenizer-type") if options.has("tokenizer-type") else _GPT2_TOKENIZER
    if tokenizer == _GPT2_TOKENIZER:
        unused = "; --vocab-size is not used" if "vocab-size" in options.given else ""
        options.notes.append(
            f"vocab_size: {_GPT2_VOCAB_SIZE} of GPT-2's tokenizer was taken, padded as Megatron pads it{unused}."
        )
        return _GPT2_VOCAB_SIZE
    stated = options.count("vocab-size")
    if stated is None:
        options.notes.append("vocab_size is not in the script: the tokenizer decides it.")
    elif tokenizer is not None and tokenizer not in _SIZED_TOKENIZERS:
        options.notes.append(f"vocab_size: --vocab-size {stated} was taken; Megatron has that of {tokenizer}'s files.")
    elif is_megatron_deepspeed(options):
        return stated + 1  # its end-of-document token, which is one of Megatron-LM's tokens
    return stated


def _head_size(options: Settings) -> int | None:
    if CORE.is_latent(options):
        return CORE.latent_head_size(options)
    return head_size(options, "kv-channels", "hidden-size", "num-attention-heads")


def _activation(options: Settings) -> str | None:
    if options.has("squared-relu"):
        return "squared_relu"
    return "clamped_swiglu" if has_clamped_swiglu(options) else None


def has_clamped_swiglu(options: Settings) -> bool:
    """True for gpt-oss' activation."""
    return options.has("quick-geglu") and all(_number(options, name) == value for name, value in CLAMPED.items())


def _number(options: Settings, name: str) -> float | None:
    text = options.text(name)
    try:
        return None if text is None else float(text)
    except ValueError:
        raise InputError(options.problem(name, rule="a number")) from None


def window(options: Settings) -> int | None:
    """Positions to which one attends, its own among them; None without a window, and for one that goes on after it."""
    found = re.fullmatch(r"\(?\s*([0-9]{1,9})\s*,\s*0\s*\)?", options.text("window-size") or "")
    return int(found[1]) + 1 if found else None


def _full_attention_every(options: Settings) -> int | None:
    return options.count("window-attn-skip-freq") if window(options) else None


MODEL_FIELDS: FieldReaders = {
    "num_layers": num_layers,
    "hidden_size": lambda options: options.count("hidden-size"),
    "num_attention_heads": lambda options: options.count("num-attention-heads"),
    "num_key_value_heads": _key_value_heads,
    "ffn_hidden_size": _ffn_hidden_size,
    "gated_mlp": lambda options: options.has("swiglu", "quick-geglu"),
    "vocab_size": _vocab_size,
    "seq_length": lambda options: options.count("seq-length", "encoder-seq-length"),
    "tied_embeddings": lambda options: not options.has("untie-embeddings-and-output-weights"),
    "position_embedding": _position_embedding,
    "norm": _norm,
    "attention_head_size": _head_size,
    "qkv_bias": _qkv_bias,
    "qk_norm": lambda options: True if options.has("qk-layernorm") and not CORE.is_latent(options) else None,
    "activation": _activation,
    "rotary_base": _rotary_base,
    "linear_biases": _linear_biases,
    "sliding_window": window,
    "full_attention_every": _full_attention_every,
    "attention_sinks": lambda options: True if options.text("softmax-type") == "learnable" else None,
    **CORE.model_fields,
}
