"""Token files for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trials.data.token_file import TokenHeader
from trials.data.writer import TokenWriter


def write_tokens(path: Path, ids: Iterable[int], vocab_size: int = 64) -> TokenHeader:
    """A token file with these ids, one document."""
    return write_documents(path, [list(ids)], vocab_size)


def write_documents(path: Path, documents: Iterable[Sequence[int]], vocab_size: int = 64) -> TokenHeader:
    """A token file with the ids of these documents."""
    with TokenWriter(path, vocab_size) as writer:
        for ids in documents:
            writer.append(ids)
        return writer.finish({"tokenizer": "test"})


def document_ids(lengths: Sequence[int]) -> list[list[int]]:
    """Ids of documents of these lengths, no two tokens in a row alike."""
    ids = iter([i * i % 61 for i in range(sum(lengths))])
    return [[next(ids) for _ in range(length)] for length in lengths]
