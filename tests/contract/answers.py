"""JSON answers checked against their types: the keys that are there, those that must be, and each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from orchestrator.answers import searches
from tests.contract.objects import OBJECTS
from trials.outcome_types import Fingerprint, FullestRank, LayoutProof, MeasuredMetrics, SlowestRank


def assert_as_declared(answer: Mapping[str, Any]) -> None:
    """AssertionError for an answer that its type does not describe. One without a schema of ours is left as it is."""
    kind = searches.ErrorAnswer if "error" in answer else answer_types().get(str(answer.get("schema")))
    assert kind is None or not (wrong := list(differences(answer, kind, kind.__name__))), wrong


@cache
def answer_types() -> Mapping[str, type]:
    """The types of answers by schema id."""
    kinds = [kind for kind in OBJECTS["answers"] if is_typeddict(kind)]
    schemas = {kind: get_args(_hints(kind)["schema"])[0] for kind in kinds if "schema" in _hints(kind)}
    return {schema: kind for kind, schema in schemas.items()}


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


def differences(value: Any, hint: Any, where: str) -> Iterator[str]:
    """Reasons why a JSON value is not of this type, each with its place."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is NotRequired:
        yield from differences(value, parts[0], where)
    elif is_typeddict(hint):
        yield from _in_object(value, hint, where)
    elif origin in (Union, UnionType):
        if all(list(differences(value, part, where)) for part in parts):
            described = [part for part in parts if is_typeddict(part)]
            yield from differences(value, described[0], where) if described else [f"{where}: {value!r:.60}"]
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from differences(item, parts[0], f"{where}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from differences(key, parts[0], f"a key of {where}")
            yield from differences(item, parts[1], f"{where}.{key}")
    elif not _is_one(value, hint):
        yield f"{where}: {value!r:.60} is not {hint}"


def _in_object(value: Any, kind: type, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {value!r:.60} is not an object"
        return
    hints = _hints(kind)
    yield from (f"{where}.{name} is not declared" for name in value if name not in hints)
    required = (name for name, hint in hints.items() if get_origin(hint) is not NotRequired)
    yield from (f"{where}.{name} is missing" for name in required if name not in value)
    for name, item in value.items():
        if name in hints:
            yield from differences(item, hints[name], f"{where}.{name}")


def _is_one(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return value in [member.value for member in hint]
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is hint


_OF_AN_OUTCOME = {
    "measured": MeasuredMetrics,
    "proof": LayoutProof,
    "fingerprint": Fingerprint,
    "slowest_rank": SlowestRank,
    "fullest_rank": FullestRank,
}


def assert_outcome_as_declared(outcome: Mapping[str, Any]) -> None:
    """AssertionError for a key of an outcome's objects that docs/contract.md does not have."""
    for name, kind in _OF_AN_OUTCOME.items():
        assert set(outcome[name]) <= set(get_type_hints(kind)), f"{name} of {kind.__name__}"
