"""Token files for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trials.data.token_file import TokenHeader
from trials.data.writer import TokenWriter


def write_tokens(path: Path, ids: Iterable[int], vocab_size: int = 64) -> TokenHeader:
    """A token file with these ids."""
    with TokenWriter(path, vocab_size) as writer:
        writer.append(ids)
        return writer.finish({"tokenizer": "test"})
