"""Objects inside an outcome checked against their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from trials.outcome_types import Fingerprint, FullestRank, LayoutProof, MeasuredMetrics, SlowestRank

_TYPES = {
    "measured": MeasuredMetrics,
    "proof": LayoutProof,
    "fingerprint": Fingerprint,
    "slowest_rank": SlowestRank,
    "fullest_rank": FullestRank,
}


def assert_outcome_as_declared(outcome: Mapping[str, Any]) -> None:
    """AssertionError for a key of an outcome's objects that docs/contract.md does not have."""
    for name, kind in _TYPES.items():
        assert set(outcome[name]) <= set(get_type_hints(kind)), f"{name} of {kind.__name__}"
