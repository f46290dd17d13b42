"""The best of the search as a running trial sees it: how fast it has to be to be worth measuring to the end.

Read from best.json, which the driver swaps in. A file that is missing, damaged, of another search, for another
objective or batch, or measured with other software or hardware is nothing to compare with. Standard library only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials.classify import are_comparable
from trials.folder import read_json
from trials.ranking import BEST_SCHEMA, Objective, sharers_of
from trials.trial import TrialKind, TrialSpec, require_schema

READ_EVERY_S = 10.0
"""A trial of an hour looks a few hundred times, one of ten seconds once."""


@dataclass(frozen=True)
class Rival:
    """The best so far, and the step time of this trial's own layout, in seconds, at which it would be as fast."""

    trial: str
    step_time_s: float


class RivalWatch:
    """Looks for the best now and then. Used by one rank, whose view the others are told."""

    def __init__(
        self,
        spec: TrialSpec,
        path: Path,
        fingerprint: Mapping[str, Any],
        now: Callable[[], float] = time.monotonic,
    ):
        self.rival: Rival | None = None
        self._spec = spec
        self._path = path
        self._fingerprint = fingerprint
        self._now = now
        self._next_look = -math.inf

    def look(self) -> Rival | None:
        """The rival as last read; read anew when the last time is a while ago."""
        if self._now() >= self._next_look:
            self.rival = read_rival(self._spec, self._path, self._fingerprint)
            self._next_look = self._now() + READ_EVERY_S
        return self.rival


def may_stop(spec: TrialSpec) -> bool:
    """Whether the trial may end itself for a rival's sake: never a repeat, and never where its rules forbid it."""
    return spec.measure.stop_dominated and spec.kind is TrialKind.SEARCH


def read_rival(spec: TrialSpec, path: Path, fingerprint: Mapping[str, Any]) -> Rival | None:
    """The rival in best.json; None where there is nothing to compare with."""
    try:
        best = read_json(path)
        return None if best is None else _rival(spec, best, fingerprint)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return None


def dominated_words(measured: Mapping[str, Any], rival: Rival) -> str:
    """Why a trial ended itself."""
    return (
        f"{measured['tokens_per_sec']:,.0f} tokens/s: a step takes {measured['step_time_s']:.4g} s, and "
        f"{rival.step_time_s:.4g} s would be as fast as {rival.trial} at least is, further apart than runs lie"
    )


def _rival(spec: TrialSpec, best: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Rival | None:
    require_schema(best, BEST_SCHEMA)
    is_ours = best["search_id"] == spec.search_id and best["trial"] != spec.trial
    is_alike = best["global_batch_size"] == spec.global_batch_size and are_comparable(fingerprint, best["fingerprint"])
    if not (is_ours and is_alike and best["threshold"] > 0):
        return None
    tokens = spec.global_batch_size * spec.model.seq_length
    wanted = best["threshold"] * sharers_of(spec.layout, Objective(best["objective"]))
    return Rival(best["trial"], tokens / wanted)
