"""Megatron's indexed datasets, written for tests and for the gallery."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path

from trials.data.indexed_dataset import IndexedDataset


def write_tokens(prefix: Path, ids: Iterable[int]) -> IndexedDataset:
    """A dataset with these ids, one document."""
    return write_documents(prefix, [list(ids)])


def write_documents(prefix: Path, documents: Sequence[Sequence[int]]) -> IndexedDataset:
    """A dataset with the ids of these documents, each one sequence."""
    lengths = [len(ids) for ids in documents]
    starts = [0, *accumulate(lengths)][:-1]
    index = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, len(documents), len(documents) + 1)
    index += array("i", lengths).tobytes() + array("q", [2 * start for start in starts]).tobytes()
    Path(f"{prefix}.idx").write_bytes(index + array("q", range(len(documents) + 1)).tobytes())
    Path(f"{prefix}.bin").write_bytes(array("H", [token for ids in documents for token in ids]).tobytes())
    return IndexedDataset(prefix)


def document_ids(lengths: Sequence[int]) -> list[list[int]]:
    """Ids of documents of these lengths, no two tokens in a row alike."""
    ids = iter([i * i % 61 for i in range(sum(lengths))])
    return [[next(ids) for _ in range(length)] for length in lengths]
