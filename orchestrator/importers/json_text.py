"""Strict parser of JSON from other programs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from search_spaces.errors import InputError
from trials.files.folders import finite_number

_MOST_DIGITS = 18


def json_object(text: str, code: str, what: str) -> dict[str, Any]:
    """The JSON object in `text`; `what` names the text in the error.

    InputError (`code`) for anything else, for a duplicate key, for a number that is not finite or absurdly long, and
    for nesting deeper than Python follows.
    """
    advice = {"rule": f"{what} is a JSON object", "fix": "correct the file, or give another"}
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_float=finite_number, parse_constant=finite_number, parse_int=_integer
        )
    except RecursionError:
        raise InputError.of(code, "nested too deep", **advice) from None
    except ValueError as error:
        raise InputError.of(code, f"not JSON: {error}", **advice) from error
    if not isinstance(data, dict):
        raise InputError.of(code, f"holds {_KINDS[type(data)]}, not a JSON object", **advice)
    return data


_KINDS = {list: "a list", str: "text", int: "a number", float: "a number", bool: "a switch", type(None): "null"}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {key!r} appears twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)
