"""Helpers for log text: its end, escape sequences, counts of things. Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from search_spaces.plain_file import open_plain

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""ECMA-48 control sequences (colours, moves) and operating system commands (titles, links)."""
_TAIL_BYTES = 64 * 1024


def last_line(text: str) -> str:
    """The last line that is not blank, stripped; "" without one."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def without_escapes(text: str) -> str:
    """The text without terminal escape sequences: trainers colour their logs even without a terminal."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def plural(count: int, noun: str) -> str:
    """`1 node`, `2 nodes`, `2 searches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def tail(path: Path, lines: int) -> str:
    """The last `lines` lines of a file, of its last 64 KiB at most, without the final line break.

    Bytes that are not UTF-8 are replaced. OSError where the file cannot be read, or does not belong to its folder's
    owner.
    """
    try:
        stream = open_plain(path)
    except ValueError as error:
        raise OSError(str(error)) from error
    with stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
        text = stream.read(_TAIL_BYTES).decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])
