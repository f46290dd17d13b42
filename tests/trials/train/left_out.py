"""Trainings by engines that others wrote, in which one reduction is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.trials.train.parity import Parity
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, Difference, RankTraining

MUTATION_BOUND = 10 * CPU_TOLERANCES["fp32"]
"""A training without one of its reductions differs by more."""


def difference_without(ranks: WarmRanks, parity: Parity, programs: str, place: str, given: Case) -> Difference:
    """Difference of three steps without the reductions of this place. `programs` is the module of the engine's."""
    return parity.difference(given, _trainings(train_recording(ranks, programs, given, 3, place)))


def places_called(ranks: WarmRanks, programs: str, cases: Sequence[Case]) -> set[str]:
    """Places of all reductions in a step of these cases."""
    return {place for given in cases for rank in train_recording(ranks, programs, given, 1) for place in rank["places"]}


def train_recording(
    ranks: WarmRanks, programs: str, given: Case, steps: int, without: str | None = None
) -> list[dict[str, Any]]:
    """Each rank's training, and its reductions by place."""
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(f"{programs}:train_recording", given.layout.num_gpus, arguments)


def _trainings(answers: Sequence[dict[str, Any]]) -> list[RankTraining]:
    return [RankTraining.from_json({k: v for k, v in a["trained"].items() if k != "switched_off"}) for a in answers]
