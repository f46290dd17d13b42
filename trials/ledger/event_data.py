"""Types of an event's data, by name: a line with a correct checksum may still not be a driver's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trials.json_types import FieldTypes, is_finite_number, is_list_of, is_object, is_text, or_null, require_types

_MOST_WHOLE = 2**63 - 1
"""Largest integer of the ledger's database."""


def require_data_types(data: Any) -> None:
    """ValueError for data that is not an object, and for a value whose type does not fit its name."""
    if not isinstance(data, Mapping):
        raise ValueError(f"its data is {data!r:.80}, not an object")
    require_types(data, _TYPES, "its")


def is_whole(value: Any) -> bool:
    """True for a whole number from 0 on that the ledger can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_WHOLE


def _is_amount(value: Any) -> bool:
    return is_finite_number(value) and value >= 0


_TYPES: FieldTypes = {
    "text": (("code_hash", "state", "kind", "attempt", "nonce", "host", "pilot"), is_text),
    "text or null": (
        ("trial", "end_reason", "detail", "reason", "job_id", "excerpt", "waits_for"),
        or_null(is_text),
    ),
    "a whole number": (("num_nodes", "restart", "pid", "num_available"), is_whole),
    "a number from 0 on": (("time_limit_s", "node_share"), _is_amount),
    "a number or null": (
        ("reserved_s", "node_hours", "billed_hours"),
        or_null(is_finite_number),
    ),  # a pilot may give hours back
    "a time or null": (("started_at", "ended_at", "unknown_since"), or_null(is_text)),
    "a list of texts": (("exclude", "nodes", "leaves", "slow_nodes", "findings"), is_list_of(is_text)),
    "an object": (("spec", "layout"), is_object),
    "an object or null": (("prediction", "outcome", "links"), or_null(is_object)),
}
