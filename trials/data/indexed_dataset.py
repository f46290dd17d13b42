"""Megatron's indexed dataset: tokens in PREFIX.bin, and in PREFIX.idx where its sequences and documents begin.

docs/data.md has the format. Opening a dataset of any size reads a few numbers and compares them with the files' sizes;
tokens are read only where a sample lies. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import struct
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from search_spaces.plain_file import open_named

ARRAY_CODES = {8: "H", 4: "i"}
"""Type codes of Python's arrays, by Megatron's code of a token's type: uint16, int32."""
MOST_COUNTED_DOCUMENTS = 2**18
"""Documents, the first of a dataset, from which their lengths are known before a search."""

_MAGIC = b"MMIDIDX\0\0"
_VERSION = 1
# Magic, version, code of a token's type, sequences, entries of the list of documents.
_HEADER = struct.Struct("<9sQBQQ")
_LENGTH_BYTES, _PLACE_BYTES = 4, 8
_DOCUMENTS_AT_ONCE = 64
_READ_BYTES = 2**20
_MOST_POINTERS = 2**20
_RULE = "PREFIX.bin and PREFIX.idx as Megatron's preprocess_data.py writes them"
_FIX = "name the prefix that --data-path of Megatron takes"


class IndexedDataset:
    """An open dataset, used by one thread at a time. Tokens are counted from 0, document after document.

    It is not mapped: reading from a mapping whose file was truncated kills the process without a message.
    """

    num_tokens: int
    num_documents: int
    array_code: str

    def __init__(self, prefix: Path):
        """InputError where there is none, or where one file is not as long as the other says."""
        if prefix.suffix in (".bin", ".idx"):
            raise _bad(prefix, "is one of a dataset's two files, not their prefix", f"write {prefix.with_suffix('')}")
        self._index, self._tokens = _File(Path(f"{prefix}.idx")), _File(Path(f"{prefix}.bin"))
        self._read_header()

    def _read_header(self) -> None:
        raw = self._index.read(0, min(_HEADER.size, self._index.size)).ljust(_HEADER.size, b"\0")
        magic, version, code, self._num_sequences, num_entries = _HEADER.unpack(raw)
        if (magic, version) != (_MAGIC, _VERSION) or num_entries < 1:
            raise _bad(self._index.path, "is not the index of a dataset")
        if code not in ARRAY_CODES:
            raise _bad(self._index.path, f"has tokens of type {code}, neither uint16 (8) nor int32 (4)")
        self.array_code, self.num_documents = ARRAY_CODES[code], num_entries - 1
        self._token_bytes = array(self.array_code).itemsize
        self._first_pointer = _HEADER.size + self._num_sequences * _LENGTH_BYTES
        self._first_document = self._first_pointer + self._num_sequences * _PLACE_BYTES
        expected = self._first_document + num_entries * _PLACE_BYTES
        if self._index.size != expected:
            counted = f"{self._num_sequences} sequences in {self.num_documents} documents take {expected}"
            raise _bad(self._index.path, f"has {self._index.size} bytes; {counted}")
        num_bytes = self._end_of_last_sequence()
        if self._tokens.size != num_bytes:
            raise _bad(self._tokens.path, f"has {self._tokens.size} bytes; by its index it has {num_bytes}")
        if self._places(self._first_document + self.num_documents * _PLACE_BYTES, 1)[0] != self._num_sequences:
            raise self._damaged()
        self.num_tokens = num_bytes // self._token_bytes

    def _end_of_last_sequence(self) -> int:
        """Bytes of all tokens by the index."""
        if not self._num_sequences:
            return 0
        length = array("i", self._index.read(self._first_pointer - _LENGTH_BYTES, _LENGTH_BYTES))[0]
        return self._places(self._first_document - _PLACE_BYTES, 1)[0] + length * self._token_bytes

    def num_samples(self, seq_length: int) -> int:
        """Number of different sequences of `seq_length` tokens, each with the token that follows it."""
        return max(0, self.num_tokens - 1) // seq_length

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the index, which is read as a whole."""
        digest = hashlib.sha256()
        for start in range(0, self._index.size, _READ_BYTES):
            digest.update(self._index.read(start, min(_READ_BYTES, self._index.size - start)))
        return f"sha256:{digest.hexdigest()}"

    def samples(self, indices: Iterable[int], seq_length: int) -> array[int]:
        """These sequences one after another, each with the token that follows it: seq_length + 1 ids.

        Sequence k begins at token k x seq_length; after the last one comes the first again. InputError where the file
        became shorter, or cannot be read any more.
        """
        count, ids = self.num_samples(seq_length), array(self.array_code)
        for index in indices:
            start = index % count * seq_length * self._token_bytes
            ids.frombytes(self._tokens.read(start, (seq_length + 1) * self._token_bytes))
        return ids

    def document_lengths(self, indices: Iterable[int], seq_length: int) -> list[tuple[int, ...]]:
        """Lengths of the documents in each of these sequences, in order, cut where the sequence begins and ends.

        InputError as `samples`, and where the documents are not in order.
        """
        count = self.num_samples(seq_length)
        return [self._lengths_in(index % count * seq_length, seq_length) for index in indices]

    def mean_document_length(self, seq_length: int) -> float:
        """Tokens of a token's document in its sequence, a mean over the tokens of the first documents
        (`MOST_COUNTED_DOCUMENTS`): the sum of the squares of the lengths over their sum. InputError without tokens."""
        ends = self._ends(0, min(self.num_documents, MOST_COUNTED_DOCUMENTS))
        last = min(ends[-1], self.num_samples(seq_length) * seq_length)
        if not last:
            raise _bad(self._tokens.path, f"has no tokens for a sequence of {seq_length} in its first documents")
        cuts = [0, *(min(end, last) for end in ends)]
        return sum(_squared_lengths(first, end, seq_length) for first, end in pairwise(cuts)) / last

    def _lengths_in(self, first: int, num_tokens: int) -> tuple[int, ...]:
        """Lengths of documents among `num_tokens` tokens from the `first` on."""
        document = bisect_right(range(self.num_documents), first, key=lambda document: self._ends(document, 1)[0])
        cuts, last = [first], first + num_tokens
        while cuts[-1] < last:
            ends = self._ends(document, min(_DOCUMENTS_AT_ONCE, self.num_documents - document))
            cuts += [min(end, last) for end in ends]
            document += len(ends)
        if not _rise(cuts):
            raise self._damaged()
        return tuple(end - begin for begin, end in pairwise(cuts) if end > begin)

    def _ends(self, first: int, count: int) -> list[int]:
        """The token after the last one of `count` documents from the `first` on. A document may be empty."""
        bounds = self._places(self._first_document + (first + 1) * _PLACE_BYTES, count)
        if not bounds or not _rise((0, *bounds, self._num_sequences)):
            raise self._damaged()
        ends = [pointer // self._token_bytes for pointer in self._pointers(bounds)]
        if not _rise((0, *ends, self.num_tokens)):
            raise self._damaged()
        return ends

    def _pointers(self, sequences: array[int]) -> list[int]:
        """Places of these rising sequences in the tokens; their end after the last."""
        first, after_last = sequences[0], min(sequences[-1] + 1, self._num_sequences)
        if after_last - first > _MOST_POINTERS:
            return [pointer for sequence in sequences for pointer in self._pointers(array("q", [sequence]))]
        pointers = self._places(self._first_pointer + first * _PLACE_BYTES, after_last - first)
        pointers.append(self._tokens.size)
        return [pointers[sequence - first] for sequence in sequences]

    def _places(self, start: int, count: int) -> array[int]:
        return array("q", self._index.read(start, count * _PLACE_BYTES))

    def _damaged(self) -> InputError:
        return _bad(self._index.path, "is damaged: its documents are not in order")


class _File:
    """A file of a dataset, opened, with its size."""

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_named(path) as stream:
                self._descriptor = os.dup(stream.fileno())
        except OSError as error:
            raise _bad(path, f"cannot be read: {error.strerror or error}") from error
        weakref.finalize(self, os.close, self._descriptor)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, start: int, num_bytes: int) -> bytes:
        """These bytes; InputError where the file is shorter."""
        try:
            raw = os.pread(self._descriptor, num_bytes, start)
        except OSError as error:
            raise _bad(self.path, f"cannot be read: {error.strerror or error}") from error
        if len(raw) < num_bytes:
            raise _bad(self.path, f"is cut short, at byte {start + len(raw)}")
        return raw


def open_dataset(data: Mapping[str, Any], model: ModelShape) -> IndexedDataset:
    """The dataset that `trainer.data` of kind tokens names; InputError unless the model can train on it.

    Where `data` has `num_tokens`, the dataset must have as many.
    """
    dataset = IndexedDataset(path := Path(data["path"]))
    if dataset.num_samples(model.seq_length) < 1:
        what = f"has {dataset.num_tokens} tokens, too few for one sequence of {model.seq_length} and the next token"
        raise _bad(path, what, "preprocess more text, or lower model.seq_length")
    _require_the_same(path, "num_tokens", dataset.num_tokens, data)
    return dataset


def require_tokens(data: Mapping[str, Any], model: ModelShape) -> IndexedDataset:
    """The same, and where `data` has the index's `checksum`, it must be this."""
    dataset = open_dataset(data, model)
    _require_the_same(Path(data["path"]), "checksum", dataset.checksum, data)
    return dataset


def _require_the_same(path: Path, name: str, value: Any, data: Mapping[str, Any]) -> None:
    if data.get(name) not in (None, value):
        message = f"is another dataset than it was: its {name} is {value}, not {data[name]}"
        raise _bad(path, message, "put the files back", rule="all that is compared trains on the same tokens")


def _rise(numbers: Iterable[int]) -> bool:
    return all(before <= after for before, after in pairwise(numbers))


def _squared_lengths(first: int, end: int, seq_length: int) -> int:
    """Sum of the squared lengths of the parts of one document that lie in different sequences."""
    until = min(end, first + -first % seq_length)
    whole, rest = divmod(end - until, seq_length)
    return (until - first) ** 2 + whole * seq_length**2 + rest**2


def _bad(path: Path, message: str, fix: str = _FIX, rule: str = _RULE) -> InputError:
    return InputError.of("dataset", f"{path} {message}", key="trainer.data.path", value=str(path), rule=rule, fix=fix)
