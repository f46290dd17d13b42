"""Parity cases on warm ranks, each compared with its reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest
from _pytest.mark import MarkDecorator

from search_spaces.decoding import decode
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import (
    Case,
    LargestDifference,
    RankTraining,
    ReferenceTraining,
    counting_fault,
    largest_difference,
    tolerance_of,
)

T = TypeVar("T")

PROGRAMS = "tests.trials.train.rank_programs"
NO_COMPILER = "no C++ compiler for torch.compile"
needs_megatron, needs_torchtitan, needs_accelerate = (
    pytest.mark.skipif(find_spec(module) is None, reason=f"{package} is not installed: the extra `trainers`")
    for module, package in {"megatron": "megatron-core", "torchtitan": "torchtitan", "accelerate": "accelerate"}.items()
)
NEEDS = {ACCELERATE: needs_accelerate, MEGATRON_CORE: needs_megatron, TORCHTITAN: needs_torchtitan}


def needed(engine: str) -> list[MarkDecorator]:
    """Marks of a test that an engine runs: it is skipped where the engine is missing, and one worker has the ranks."""
    return [pytest.mark.xdist_group(f"engine-{engine}"), *([NEEDS[engine]] if engine in NEEDS else [])]


def only(engine: str) -> Callable[[T], T]:
    """Decorator of a test that only this engine runs."""
    return lambda test: reduce(lambda marked, mark: mark(marked), needed(engine), test)


class Parity:
    """Runs cases, and the reference of each shape and precision once."""

    def __init__(self, ranks: WarmRanks):
        self.ranks = ranks
        self._references: dict[tuple[str, str], ReferenceTraining] = {}

    def reference(self, shape: str, precision: str = "fp32") -> ReferenceTraining:
        if (shape, precision) not in self._references:
            arguments = {"case": named_case("reference", shape, precision=precision).to_json()}
            [answer] = self.ranks.run(f"{PROGRAMS}:train_reference", 1, arguments)
            self._references[shape, precision] = decode(ReferenceTraining, answer)
        return self._references[shape, precision]

    def train(self, given: Case, steps: int = 10) -> list[RankTraining]:
        return self._trained("train_layout", given, steps=steps)

    def train_without(self, given: Case, without: str, steps: int) -> list[RankTraining]:
        """Train with a reduction or a guard disabled that every rank would have used."""
        return self._trained("train_switched_off", given, steps=steps, without=without)

    def difference(self, given: Case, trained: list[RankTraining]) -> LargestDifference:
        return largest_difference(trained, self.reference(given.shape, given.layout.precision))

    def expect(self, given: Case, record_property: Callable[[str, object], None], steps: int = 10) -> None:
        """Train a case on a CPU, and assert that its steps are those of the plain GPT."""
        trained = self.train(given, steps)
        difference, tolerance = self.difference(given, trained), tolerance_of(given, "cpu")
        record_property("difference", difference.value)
        assert difference.value <= tolerance, f"{given.name} differs by {difference}, {tolerance:.0e} are tolerated"
        assert counting_fault(given, trained, steps) is None

    def _trained(self, program: str, given: Case, **options: Any) -> list[RankTraining]:
        arguments = {"case": given.to_json(), **options}
        answers = self.ranks.run(f"{PROGRAMS}:{program}", given.layout.num_gpus, arguments)
        return [decode(RankTraining, answer) for answer in answers]
