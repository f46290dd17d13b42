"""The model section, read from Megatron's options."""

from __future__ import annotations

from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.settings import FieldReaders, Settings

_GPT2_VOCAB_SIZE = 50257
_DEFAULT_TOKENIZER = "GPT2BPETokenizer"
"""By pretrain_gpt.py of both Megatrons."""


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
    size = options.count("vocab-size")
    tokenizer = options.text("tokenizer-type") if options.has("tokenizer-type") else _DEFAULT_TOKENIZER
    if size is None and tokenizer == _DEFAULT_TOKENIZER:
        size = _GPT2_VOCAB_SIZE
        options.notes.append(f"vocab_size: {size} of GPT-2's tokenizer was taken, padded as Megatron pads it.")
    if size is None:
        options.notes.append("vocab_size is not in the script: the tokenizer decides it.")
        return None
    if tokenizer == "NullTokenizer" and is_megatron_deepspeed(options):
        size += 1  # its end-of-document token, which is one of Megatron-LM's tokens
    if options.has("no-pad-vocab-size", "disable-pad-vocab-size"):
        return size
    multiple = (options.count("make-vocab-size-divisible-by") or 128) * degree(options, "tensor")
    return -(-size // multiple) * multiple


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
}
