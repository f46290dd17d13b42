"""Files that an import starts from, and those beside them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search_spaces.decoding import parse_json
from search_spaces.errors import InputError
from search_spaces.plain_file import read_named, read_referenced
from search_spaces.schema.yaml_document import MAX_BYTES, Document, parse_document

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


def yaml_document(text: str) -> Document:
    """The YAML mapping in this text; errors name no file, which the caller fills in."""
    return parse_document(text.encode(), None, Path())


def json_object(text: str, code: str, what: str) -> dict[str, Any]:
    """The JSON object in `text`; `what` names the text in the error. InputError (`code`) for anything else, for a
    duplicate key, and as `parse_json` says."""
    try:
        data = parse_json(text)
        json.loads(text, object_pairs_hook=_require_unique)
        if not isinstance(data, dict):
            raise ValueError("it is a list or a single value")
    except ValueError as error:
        fix = "correct the file, or give another"
        raise InputError.of(code, f"not a JSON object: {error}", rule=f"{what} is a JSON object", fix=fix) from error
    return data


def _require_unique(pairs: list[tuple[str, Any]]) -> None:
    ((key, count),) = Counter(key for key, _ in pairs).most_common(1) or [("", 0)]
    if count > 1:
        raise ValueError(f"the key {key!r} appears twice")
