"""Plain data as text that JSON and YAML parsers of every version read alike. Standard library only."""

from __future__ import annotations

import json
import re
from typing import Any


def plain_yaml(data: Any) -> str:
    """The data as JSON in which every float has a point, since YAML 1.1 reads 1e-05 as text. ValueError for NaN."""
    return (
        _EXPONENT_WITHOUT_POINT.sub(lambda found: found[0] if found[1] else _with_point(found[2]), _dumped(data)) + "\n"
    )


# A string literal is matched first and left unchanged; then a number with an exponent and without a point.
_EXPONENT_WITHOUT_POINT = re.compile(r'("(?:[^"\\]|\\.)*")|(-?\d+e[-+]\d+)')


def _dumped(data: Any) -> str:
    return json.dumps(data, indent=2, allow_nan=False)


def _with_point(number: str) -> str:
    digits, _, exponent = number.partition("e")
    return f"{digits}.0e{exponent}"
