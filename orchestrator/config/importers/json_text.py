"""Strict parser of JSON from other programs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from search_spaces.decoding import parse_json
from search_spaces.errors import InputError


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
