"""Plain data as text that JSON and YAML parsers of every version read alike. Standard library only."""

from __future__ import annotations

import json
import re
from typing import Any


def plain_yaml(data: Any) -> str:
    """The data as JSON in which every float has a point, since YAML 1.1 reads 1e-05 as text. ValueError for NaN."""
    text = json.dumps(data, indent=2, allow_nan=False)
    return _EXPONENT.sub(lambda found: found[1] or f"{found[2]}.0{found[3]}", text) + "\n"


_EXPONENT = re.compile(r'("(?:[^"\\]|\\.)*"|\d+\.\d+e[-+]\d+)|(\d+)(e[-+]\d+)')
"""A text or a number with a point, which stay as they are, or a number with an exponent and without a point."""
