"""Is the layout as fast as it was? Two sets of runs compared: pure. The rule in words: docs/recipe.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.recipe.occasions import Run, by_occasion, log_change
from trials.trial import Word

WIDE_MARGINS = 3
"""A replay is called reproduced only if a change of this many margins is excluded."""

_OF_ONE_JOB = ("job_id", "probe_ms_by_rank")
_ENVIRONMENT = "environment"


class ReplayVerdict(Word):
    REPRODUCED = "reproduced"
    SLOWER = "slower"
    FASTER = "faster"
    INCONCLUSIVE = "inconclusive"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Comparison:
    """How fast the later runs are relative to the earlier ones (above 1: faster), with a 95 % interval.

    `by_occasion` says the same of each occasion of the later runs alone.
    """

    verdict: ReplayVerdict
    ratio: float
    low: float
    high: float
    by_occasion: tuple[float, ...] = ()


def compare(recorded: Sequence[Run], measured: Sequence[Run], margin: float) -> Comparison:
    """The verdict on two sets of runs; both hold at least one. The interval rests on the spread between occasions."""
    before, after = by_occasion(recorded), by_occasion(measured)
    change, half_width = log_change(before, after)
    ratio, low, high = (math.exp(x) for x in (change, change - half_width, change + half_width))
    ratios = tuple(math.exp(log_change(before, [occasion])[0]) for occasion in after)
    return Comparison(_judged(ratio, low, high, ratios, margin), ratio, low, high, ratios)


def _judged(ratio: float, low: float, high: float, ratios: Sequence[float], margin: float) -> ReplayVerdict:
    """Slower and faster need a change beyond the margin, an interval without 1, and no occasion that says otherwise: a
    machine that was as fast as then even once is not slower than then. Doubt is inconclusive."""
    if ratio < 1 - margin and max(high, *ratios) < 1:
        return ReplayVerdict.SLOWER
    if ratio > 1 + margin and min(low, *ratios) > 1:
        return ReplayVerdict.FASTER
    wide = WIDE_MARGINS * margin
    if abs(ratio - 1) <= margin and low > 1 - wide and high < 1 + wide:
        return ReplayVerdict.REPRODUCED
    return ReplayVerdict.INCONCLUSIVE


def fingerprint_differences(recorded: Mapping[str, Any], here: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The fields that are not the same; None where one side does not know it. What differs from job to job is left
    out. A variable of the environment is a field of its own, `environment.NAME`, where both sides know theirs."""
    before, now = _fields(recorded), _fields(here)
    if isinstance(recorded.get(_ENVIRONMENT), Mapping) and isinstance(here.get(_ENVIRONMENT), Mapping):
        before, now = before | _variables(recorded), now | _variables(here)
    return [
        {"field": name, "recorded": before.get(name), "here": now.get(name)}
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]


def _fields(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fingerprint.items() if name not in (*_OF_ONE_JOB, _ENVIRONMENT)}


def _variables(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{_ENVIRONMENT}.{name}": value for name, value in fingerprint[_ENVIRONMENT].items()}
