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
    """Reader of the files that a script names: below its folder, else where the command runs.

    A link leads to another folder only where the name says one.
    """

    def read(name: str) -> str:
        folder = script.parent if os.path.exists(script.parent / name) else Path()
        is_below = not os.path.isabs(name) and ".." not in Path(name).parts
        if is_below and not Path(os.path.realpath(folder / name)).is_relative_to(folder.resolve()):
            rule = "a link is followed inside of its folder only"
            raise InputError.of("file", "is a link that leads out of the folder", rule=rule, fix="name the file itself")
        return read_utf8(folder / name, read_referenced)

    return read
