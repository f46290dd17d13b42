"""Token files: a header of one page, the tokens, and where each document ends, little-endian. Standard library only.

docs/data.md has the format. The header is small and has a checksum, so a search can check a file of any size before it
launches anything; tokens are read only where a sample lies.
"""

from __future__ import annotations

import json
import operator
import os
import struct
import sys
import weakref
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any, BinaryIO

from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from search_spaces.plain_file import open_named

MAGIC = b"\x89parlay\n"
"""A byte that no text begins with, and a line end: a file damaged by a transfer as text is detected."""
VERSION = 2
HEADER_BYTES = 4096
"""One page, so that the tokens are page-aligned."""
ARRAY_CODES = {2: "H", 4: "I"}
"""Type codes of Python's arrays of unsigned numbers, by the bytes of a token."""
MADE_BYTES = 4000
"""Room in the header for the record of how the file was made."""

# Magic, version, bytes of a token, tokens, documents, vocabulary, SHA-256 of the rest of the file, length of the JSON
# that follows.
_FIXED = struct.Struct("<8sIIQQQ32sI")
_CRC32 = struct.Struct("<I")
END_BYTES = 8
"""Bytes of a document's end: the number of tokens up to it."""
MOST_COUNTED_DOCUMENTS = 2**18
"""Documents, the first of a file, from which their lengths are known before a search: 2 MiB of a file of any size."""
_RULE = "a token file as `parlay prepare` writes it"
_FIX = "make it with parlay prepare"
_OTHER_FORMATS = (
    (b"MMIDIDX", "the index of a Megatron-LM dataset"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"{", "JSON"),
)


@dataclass(frozen=True)
class TokenHeader:
    """Header of a token file. `checksum` is that of tokens and documents; `made` records how the file was made.

    Ids are below `vocab_size`; each takes `token_bytes` (2 or 4).
    """

    token_bytes: int
    num_tokens: int
    num_documents: int
    vocab_size: int
    checksum: str
    made: Mapping[str, Any]

    @property
    def file_bytes(self) -> int:
        return self.first_end_byte + self.num_documents * END_BYTES

    @property
    def first_end_byte(self) -> int:
        """Place of the first document's end: after the tokens, at a multiple of eight."""
        return HEADER_BYTES + self.num_tokens * self.token_bytes + ends_padding(self.num_tokens * self.token_bytes)

    def num_samples(self, seq_length: int) -> int:
        """Number of different sequences, each with the token that follows it."""
        return (self.num_tokens - 1) // seq_length

    def to_bytes(self) -> bytes:
        """The header as written; ValueError where `made` is too long."""
        made = json.dumps(self.made, ensure_ascii=False, separators=(",", ":")).encode()
        if len(made) > MADE_BYTES:
            raise ValueError(f"the record of how it was made has {len(made)} bytes, at most {MADE_BYTES} are allowed")
        digest = bytes.fromhex(self.checksum.removeprefix("sha256:"))
        numbers = (VERSION, self.token_bytes, self.num_tokens, self.num_documents, self.vocab_size)
        text = (_FIXED.pack(MAGIC, *numbers, digest, len(made)) + made).ljust(HEADER_BYTES - _CRC32.size, b"\0")
        return text + _CRC32.pack(zlib.crc32(text))

    @classmethod
    def from_bytes(cls, raw: bytes) -> TokenHeader:
        """The inverse of `to_bytes`; ValueError for anything else, in words that follow the file's name."""
        if not raw.startswith(MAGIC):
            raise ValueError(f"is not a token file{_describe_format(raw)}")
        if len(raw) < HEADER_BYTES:
            raise ValueError(f"ends within its header, after {len(raw)} of {HEADER_BYTES} bytes")
        _, version, token_bytes, num_tokens, num_documents, vocab_size, digest, made_bytes = _FIXED.unpack_from(raw)
        if version != VERSION:
            raise ValueError(f"is of version {version}; this Parlay reads version {VERSION}")
        if _CRC32.unpack_from(raw, HEADER_BYTES - _CRC32.size) != (zlib.crc32(raw[: HEADER_BYTES - _CRC32.size]),):
            raise ValueError("has a damaged header: its checksum differs")
        if token_bytes not in ARRAY_CODES or not 1 <= vocab_size <= 2 ** (8 * token_bytes):
            raise ValueError(f"has {token_bytes} bytes a token and a vocabulary of {vocab_size}")
        if not min(1, num_tokens) <= num_documents <= num_tokens:
            raise ValueError(f"has {num_documents} documents of {num_tokens} tokens together")
        made = _made_from(raw[_FIXED.size : _FIXED.size + made_bytes])
        return cls(token_bytes, num_tokens, num_documents, vocab_size, f"sha256:{digest.hex()}", made)


def ends_padding(token_bytes: int) -> int:
    """Bytes of zeros after this many bytes of tokens, so that the documents' ends are aligned."""
    return -token_bytes % END_BYTES


class TokenFile:
    """An open token file; only the requested parts are read. To be used by one thread at a time.

    It is not mapped: reading from a mapping whose file was truncated kills the process without a message.
    """

    def __init__(self, path: Path):
        """InputError where there is none that can be read."""
        with _opened(path) as stream:
            self.header = _header_of(stream, path)
            self._descriptor = os.dup(stream.fileno())
        weakref.finalize(self, os.close, self._descriptor)
        self._path = path

    def samples(self, indices: Iterable[int], seq_length: int) -> array[int]:
        """These sequences one after another, each with the token that follows it: seq_length + 1 ids.

        Sequence k begins at token k x seq_length; after the last one comes the first again. InputError where the file
        became shorter, or cannot be read any more.
        """
        size, count = self.header.token_bytes, self.header.num_samples(seq_length)
        ids = array(ARRAY_CODES[size])
        for index in indices:
            start = HEADER_BYTES + index % count * seq_length * size
            ids.frombytes(self._read(start, (seq_length + 1) * size))
        return _native(ids)

    def document_lengths(self, indices: Iterable[int], seq_length: int) -> list[tuple[int, ...]]:
        """Lengths of the documents in each of these sequences, in order, cut where the sequence begins and ends.

        InputError as `samples`, and where the ends are not those of documents.
        """
        count = self.header.num_samples(seq_length)
        return [self._lengths_in(index % count * seq_length, seq_length) for index in indices]

    def mean_document_length(self, seq_length: int) -> float:
        """Tokens of a token's document in its sequence, a mean over the tokens of the first documents of the file
        (`MOST_COUNTED_DOCUMENTS`): the sum of the squares of the lengths over their sum."""
        ends = self._ends(0, 0, min(self.header.num_documents, MOST_COUNTED_DOCUMENTS))
        last = min(ends[-1], self.header.num_samples(seq_length) * seq_length)
        cuts = [0, *takewhile(lambda end: end < last, ends), last]
        return sum(_squared_lengths(first, end, seq_length) for first, end in pairwise(cuts)) / last

    def _lengths_in(self, first: int, num_tokens: int) -> tuple[int, ...]:
        """Lengths of documents among `num_tokens` tokens from the `first` on."""
        before = bisect_right(
            range(self.header.num_documents), first, key=lambda document: self._ends(-1, document, 1)[0]
        )
        following = min(num_tokens, self.header.num_documents - before)
        return _differences(self._ends(first, before, following), first, first + num_tokens)

    def _ends(self, after: int, first: int, count: int) -> array[int]:
        """Ends of `count` documents from the `first` on, of which all are after token `after`."""
        ends = array("Q")
        ends.frombytes(self._read(self.header.first_end_byte + first * END_BYTES, count * END_BYTES))
        ends = _native(ends)
        if not all(map(operator.lt, chain((after,), ends), ends)):
            raise _bad(self._path, "is damaged: its documents do not end one after another")
        return ends

    def _read(self, start: int, num_bytes: int) -> bytes:
        try:
            raw = os.pread(self._descriptor, num_bytes, start)
        except OSError as error:
            raise _bad(self._path, f"cannot be read: {error.strerror or error}") from error
        if len(raw) < num_bytes:
            raise _bad(self._path, _cut_short(os.fstat(self._descriptor).st_size, self.header))
        return raw


def _native(numbers: array[int]) -> array[int]:
    """The little-endian numbers in this machine's byte order."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _differences(ends: Iterable[int], first: int, last: int) -> tuple[int, ...]:
    """Lengths of the parts into which these increasing ends cut what is between `first` and `last`."""
    cuts = [first, *takewhile(lambda end: end < last, ends), last]
    return tuple(after - before for before, after in pairwise(cuts))


def _squared_lengths(first: int, end: int, seq_length: int) -> int:
    """Sum of the squared lengths of the parts of one document that lie in different sequences."""
    until = min(end, first + -first % seq_length)
    whole, rest = divmod(end - until, seq_length)
    return (until - first) ** 2 + whole * seq_length**2 + rest**2


def read_token_header(path: Path) -> TokenHeader:
    """The header, checked against the length of the whole file; InputError for any other file.

    Only one page is read, whatever the file's size.
    """
    with _opened(path) as stream:
        return _header_of(stream, path)


def require_tokens(data: Mapping[str, Any], model: ModelShape) -> TokenHeader:
    """The header of the file that `trainer.data` of kind tokens names; InputError unless the model can train on it.

    Where `data` has `num_tokens` and `checksum`, the file must match them.
    """
    path = Path(data["path"])
    header = read_token_header(path)
    if header.vocab_size > model.vocab_size:
        raise InputError.of(
            "token_file",
            f"{path} has a vocabulary of {header.vocab_size}, the model one of {model.vocab_size}",
            key="trainer.data.path",
            value=str(path),
            rule="every id of the file is a row of the model's token table",
            fix=f"raise model.vocab_size to {header.vocab_size} or more, or prepare with the model's own tokenizer",
        )
    if header.num_samples(model.seq_length) < 1:
        raise InputError.of(
            "token_file",
            f"{path} has {header.num_tokens} tokens, too few for one sequence of {model.seq_length} and the next token",
            key="trainer.data.path",
            value=str(path),
            fix="prepare more text, or lower model.seq_length",
        )
    _require_the_same(path, header, data)
    return header


def _opened(path: Path) -> BinaryIO:
    try:
        return open_named(path)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror or error}") from error


def _header_of(stream: BinaryIO, path: Path) -> TokenHeader:
    try:
        header = TokenHeader.from_bytes(stream.read(HEADER_BYTES))
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if path.suffix == ".bin" and path.with_suffix(".idx").exists():
            raise _bad(path, "is not a token file; with an .idx beside it, it seems to be Megatron-LM's") from error
        raise _bad(path, str(error)) from error
    size = os.fstat(stream.fileno()).st_size
    if size < header.file_bytes:
        raise _bad(path, _cut_short(size, header))
    if size > header.file_bytes:
        raise _bad(path, f"has {size} bytes, {size - header.file_bytes} more than its header says")
    return header


def _require_the_same(path: Path, header: TokenHeader, data: Mapping[str, Any]) -> None:
    found = {"num_tokens": header.num_tokens, "checksum": header.checksum}
    for name, value in found.items():
        if data.get(name) not in (None, value):
            raise InputError.of(
                "token_file",
                f"{path} is another file than it was: its {name} is {value}, not {data[name]}",
                key="trainer.data.path",
                value=str(path),
                rule="all that is compared trains on the same tokens",
                fix="put the file back",
            )


def _made_from(raw: bytes) -> Mapping[str, Any]:
    try:
        made = json.loads(raw)
    except (ValueError, RecursionError):
        made = None
    if not isinstance(made, dict):
        raise ValueError("has a header without a record of how the file was made")
    return made


def _describe_format(raw: bytes) -> str:
    return next((f": it seems to be {what}" for magic, what in _OTHER_FORMATS if raw.startswith(magic)), "")


def _cut_short(size: int, header: TokenHeader) -> str:
    return f"is cut short: it has {size} bytes, {header.num_tokens} tokens of {header.token_bytes} need more"


def _bad(path: Path, message: str) -> InputError:
    return InputError.of(
        "token_file", f"{path} {message}", key="trainer.data.path", value=str(path), rule=_RULE, fix=_FIX
    )
