"""JSON answers checked against their models: the keys that are there, those that must be, and each value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from orchestrator.cli.prepare import answers
from orchestrator.config.answer import AnswerPart
from trials.outcome_types import Fingerprint, FullestRank, LayoutProof, MeasuredMetrics, SlowestRank


def assert_as_declared(answer: Mapping[str, Any]) -> None:
    """Raises unless the answer's model reads it and writes the same. One without a schema of ours is left as it is."""
    schema = "parlay.error/1" if "error" in answer else str(answer.get("schema"))
    kind = _models().get(schema.removeprefix("parlay.").removesuffix("/1"))
    assert kind is None or kind.model_validate(answer).plain() == answer


@cache
def _models() -> Mapping[str, type[AnswerPart]]:
    return answers()


_OF_AN_OUTCOME = {
    "measured": MeasuredMetrics,
    "proof": LayoutProof,
    "fingerprint": Fingerprint,
    "slowest_rank": SlowestRank,
    "fullest_rank": FullestRank,
}


def assert_outcome_as_declared(outcome: Mapping[str, Any]) -> None:
    """AssertionError for a key of an outcome's objects that its type does not have."""
    for name, kind in _OF_AN_OUTCOME.items():
        assert set(outcome[name] or {}) <= set(get_type_hints(kind)), f"{name} of {kind.__name__}"
