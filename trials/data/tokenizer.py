"""Tokenizers: a Hugging Face tokenizer.json, or the bytes of the text."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search_spaces.errors import InputError
from search_spaces.plain_file import read_named

BYTES = "bytes"
"""Name of the tokenizer that needs no file."""
_MOST_BYTES = 256 * 2**20
_USUAL_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<|end|>")
"""End-of-text tokens of GPT-2 and NeoX, of Llama 2, of Llama 3, of Gemma, and of others."""


class Tokenizer(ABC):
    """Interface of a tokenizer. Ids are from 0 up to `vocab_size`. `end_of_text` is the id after a text's end, None
    without one."""

    name: str
    checksum: str | None
    vocab_size: int
    end_of_text: int | None

    @abstractmethod
    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        """The ids of each text, without any added before or after it. The texts are valid Unicode."""


class ByteTokenizer(Tokenizer):
    """One token per byte of UTF-8, and 256 after a text's end."""

    name = BYTES
    checksum = None
    vocab_size = 257
    end_of_text = 256

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [text.encode() for text in texts]


class FileTokenizer(Tokenizer):
    """A tokenizer.json of the Hugging Face library `tokenizers`."""

    def __init__(self, path: Path, end_token: str | None):
        """InputError where there is none, or the library is missing. `end_token` None: the usual one, if any."""
        self._encoder, raw = _loaded(path)
        self.name = path.name
        self.checksum = f"sha256:{hashlib.sha256(raw).hexdigest()}"
        ids = self._encoder.get_vocab(with_added_tokens=True)
        self.vocab_size = max(ids.values(), default=-1) + 1
        self.end_of_text = _end_of_text(ids, end_token)

    def encode(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return [encoded.ids for encoded in self._encoder.encode_batch(texts, add_special_tokens=False)]


def open_tokenizer(given: str, end_token: str | None = None) -> Tokenizer:
    """The tokenizer that `--tokenizer` names: `bytes`, or a file's path. InputError where it cannot be used."""
    if given != BYTES:
        return FileTokenizer(Path(given), end_token)
    if end_token is not None:
        raise InputError.of(
            "tokenizer",
            f"the tokenizer {BYTES} has its own end-of-text token",
            key="--eos-token",
            value=end_token,
            fix="leave --eos-token out",
        )
    return ByteTokenizer()


def _loaded(path: Path) -> tuple[Any, bytes]:
    """The library's tokenizer and the file's content."""
    try:
        from tokenizers import Tokenizer as Encoder
    except ImportError as error:
        raise InputError.of(
            "tokenizer",
            "the package tokenizers is not installed",
            key="--tokenizer",
            value=str(path),
            fix=f"pip install 'parlay[prepare]', or take --tokenizer {BYTES}",
        ) from error
    try:
        raw = read_named(path, _MOST_BYTES)
        encoder = Encoder.from_buffer(raw)
    except Exception as error:  # the library raises Exception itself
        raise InputError.of(
            "tokenizer",
            f"{path}: {getattr(error, 'strerror', None) or error}",
            key="--tokenizer",
            value=str(path),
            rule=f"a Hugging Face tokenizer.json, or {BYTES}",
            fix=f"name the tokenizer.json next to the model's config.json, or take --tokenizer {BYTES}",
        ) from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder, raw


def _end_of_text(ids: dict[str, int], end_token: str | None) -> int | None:
    if end_token is None:
        return next((ids[token] for token in _USUAL_ENDS if token in ids), None)
    if end_token not in ids:
        raise InputError.of(
            "tokenizer",
            f"the tokenizer has no token {end_token!r}",
            key="--eos-token",
            value=end_token,
            fix="name a token of its vocabulary",
        )
    return ids[end_token]
