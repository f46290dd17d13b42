"""Meaning of an export: fields of a layout and a model by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.layouts.layout import AXES

Values = Mapping[str, Any]
Meaning = dict[str, Any]

PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
RECOMPUTED_MODULES = AXES["recompute_modules"]


def same(values: Any) -> Any:
    """The value that all of them have; the sorted values where they differ."""
    found = sorted(set(values))
    return found[0] if len(found) == 1 else found
