"""Files that an import starts from, and those beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from search_spaces.errors import InputError
from search_spaces.plain_file import read_named, read_referenced
from search_spaces.schema.yaml_document import MAX_BYTES

ReadFile = Callable[[str], str]
"""Text of a file by its path in a script; InputError where it cannot be read."""
_FIX = "give the script, config or grid itself, a file that you can read"


def read_utf8(path: Path, read: Callable[[Path, int], bytes] = read_named) -> str:
    """Text of a file to start from; InputError if it is unreadable, too large or no text in UTF-8."""
    try:
        text = read(path, MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise InputError.of("file", f"cannot be read: {error.strerror or error}", fix=_FIX) from error
    except UnicodeDecodeError as error:
        raise InputError.of("file", "is not UTF-8 text", fix=_FIX) from error
    if "\0" in text:
        raise InputError.of("file", "has a NUL character", rule="a file to start from is text", fix=_FIX)
    return text


def read_beside(script: Path) -> ReadFile:
    """Reader of the files that a script names: below its folder, else where the command runs."""

    def read(name: str) -> str:
        below = script.parent / name
        return read_utf8(below if os.path.exists(below) else Path(name), read_referenced)

    return read
