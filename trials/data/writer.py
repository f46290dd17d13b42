"""Writer of token files, which appear in their place only when complete. Standard library only."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from search_spaces.errors import ExternalError, InputError
from trials.data.token_file import ARRAY_CODES, END_BYTES, HEADER_BYTES, TokenHeader, ends_padding
from trials.files.folders import sync_folder

_COPIED_BYTES = 2**20


class TokenWriter:
    """Writes a token file: a context manager that leaves nothing behind unless `finish` was called.

    Entering raises InputError where no file can be made at `path`; ExternalError when it cannot be written completely.
    """

    _stream: BinaryIO
    _ends: BinaryIO

    def __init__(self, path: Path, vocab_size: int):
        self.num_tokens = 0
        self._token_bytes = 2 if vocab_size <= 2**16 else 4
        self._vocab_size = vocab_size
        self._path = path
        self._digest = hashlib.sha256()
        self._num_documents = 0
        self._part = path.parent / f".{path.name}.{secrets.token_hex(4)}.part"

    def __enter__(self) -> TokenWriter:
        try:
            self._stream = _opened(self._part, self._path)
            self._stream.seek(HEADER_BYTES)
            with self._refusing():
                self._ends = tempfile.TemporaryFile(dir=self._path.parent)
        except BaseException:  # a signal may arrive as soon as the file exists
            with suppress(OSError, ValueError):  # it does not exist, or its name is invalid
                self._part.unlink()
            raise
        return self

    def append(self, ids: Iterable[int]) -> None:
        """Append a document, unless it is empty; ValueError for ids that are not from 0 up to the vocabulary's size."""
        try:
            tokens = array(ARRAY_CODES[self._token_bytes], ids)
        except OverflowError as error:
            raise ValueError(f"an id is not one of {self._vocab_size}: {error}") from error
        if tokens and max(tokens) >= self._vocab_size:
            raise ValueError(f"id {max(tokens)} is not one of {self._vocab_size}")
        if not tokens:
            return
        if sys.byteorder == "big":
            tokens.byteswap()
        self.num_tokens += len(tokens)
        self._num_documents += 1
        with self._refusing():
            self._write(tokens.tobytes())
            self._ends.write(self.num_tokens.to_bytes(END_BYTES, "little"))

    def finish(self, made: Mapping[str, Any]) -> TokenHeader:
        """Move the file into place; `made` records how it was made."""
        with self._refusing():
            self._write_ends()
            checksum = f"sha256:{self._digest.hexdigest()}"
            counts = self.num_tokens, self._num_documents
            header = TokenHeader(self._token_bytes, *counts, self._vocab_size, checksum, made)
            self._stream.seek(0)
            self._stream.write(header.to_bytes())
            self._stream.flush()
            os.fsync(self._stream.fileno())
            os.replace(self._part, self._path)
            sync_folder(self._path.parent)
        return header

    def _write(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._stream.write(raw)

    def _write_ends(self) -> None:
        self._write(bytes(ends_padding(self.num_tokens * self._token_bytes)))
        self._ends.seek(0)
        while raw := self._ends.read(_COPIED_BYTES):
            self._write(raw)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            with suppress(OSError):  # no room for buffered data; the files are deleted anyway
                self._ends.close()
            with suppress(OSError):
                self._stream.close()
        finally:
            self._part.unlink(missing_ok=True)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            raise ExternalError(f"{self._path} could not be written: {why}; nothing of it is left") from error


def _opened(part: Path, path: Path) -> BinaryIO:
    try:
        return part.open("xb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError.of(
            "output", f"{path}: {why}", key="--out", value=str(path), fix="name a new file where you may write"
        ) from error
