"""Strict parser of JSON from other programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from search_spaces.decoding import parse_json
from search_spaces.errors import InputError


def json_object(text: str, code: str, what: str) -> dict[str, Any]:
    """The JSON object in `text`; `what` names the text in the error. InputError (`code`) for anything else, for a
    duplicate key, and as `parse_json` says."""
    try:
        data = parse_json(text, _object)
        if not isinstance(data, dict):
            raise ValueError("it is a list or a single value")
    except ValueError as error:
        fix = "correct the file, or give another"
        raise InputError.of(code, f"not a JSON object: {error}", rule=f"{what} is a JSON object", fix=fix) from error
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} appears twice")
    return found
