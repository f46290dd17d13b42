"""Ten clipped steps of every kind of layout against a plain GPT that shares nothing with the trial program."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from tests.trials.train.ranks import RanksFailed, WarmRanks
from trials.parity_cases import SHAPES, compiled_cases, covering_cases, named_case
from trials.selftest import (
    CPU_TOLERANCES,
    Case,
    Difference,
    RankTraining,
    Trained,
    counting_fault,
    largest_difference,
    tolerance_of,
)
from trials.train.reductions import Reduction

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

PROGRAMS = "tests.trials.train.rank_programs"
STEPS = 10
NO_COMPILER = "no C++ compiler for torch.compile"


class Parity:
    """Runs cases, and the reference of each shape and precision once."""

    def __init__(self, ranks: WarmRanks):
        self._ranks = ranks
        self._references: dict[tuple[str, str], Trained] = {}

    def reference(self, shape: str, precision: str = "fp32") -> Trained:
        if (shape, precision) not in self._references:
            arguments = {"case": named_case("reference", shape, precision=precision).to_json()}
            [answer] = self._ranks.run(f"{PROGRAMS}:train_reference", 1, arguments)
            self._references[shape, precision] = Trained.from_json(answer)
        return self._references[shape, precision]

    def train(self, given: Case, steps: int = STEPS) -> list[RankTraining]:
        return [RankTraining.from_json(answer) for answer in self._answers(given, steps)]

    def train_without(self, given: Case, without: str, steps: int) -> list[RankTraining]:
        """With a reduction or a guard switched off, which every rank was about to use."""
        answers = self._answers(given, steps, without)
        assert all(answer.pop("switched_off") for answer in answers)
        return [RankTraining.from_json(answer) for answer in answers]

    def difference(self, given: Case, trained: list[RankTraining]) -> Difference:
        return largest_difference(trained, self.reference(given.shape, given.layout.precision))

    def _answers(self, given: Case, steps: int, without: str | None = None) -> list[dict[str, Any]]:
        arguments = {"case": given.to_json(), "steps": steps, "without": without}
        answers = self._ranks.run(f"{PROGRAMS}:train_layout", given.layout.num_gpus, arguments)
        return [a if without else {k: v for k, v in a.items() if k != "switched_off"} for a in answers]


@pytest.fixture(scope="module")
def parity(ranks: WarmRanks) -> Parity:
    return Parity(ranks)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_learns_and_every_step_of_it_is_clipped(parity, shape, precision):
    reference = parity.reference(shape, precision)
    assert reference.losses[-1] < reference.losses[0] - 20 * CPU_TOLERANCES[precision]
    assert min(reference.grad_norms) > 0.5


@pytest.mark.parametrize("given", covering_cases(), ids=lambda given: given.name)
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, given, record_property):
    trained = parity.train(given)
    difference, tolerance = parity.difference(given, trained), tolerance_of(given, "cpu")
    record_property("difference", difference.value)
    assert difference.value <= tolerance, f"{given.name} differs by {difference}, {tolerance:.0e} are tolerated"
    assert counting_fault(given, trained, STEPS) is None


@pytest.mark.parametrize("given", compiled_cases(), ids=lambda given: given.name)
def test_so_are_those_of_a_compiled_one(parity, given):
    if shutil.which("g++") is None:
        pytest.skip(NO_COMPILER)
    difference = parity.difference(given, parity.train(given))
    assert difference.value <= tolerance_of(given, "cpu"), f"{given.name} differs by {difference}"


def test_half_precision_is_what_it_says(parity):
    given = named_case("bf16", precision="bf16")
    in_fp32 = parity.train(replace(given, layout=replace(given.layout, precision="fp32")))
    assert parity.difference(given, in_fp32).value > CPU_TOLERANCES["fp32"]


TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
DEEPSPEED = {"engine": "deepspeed"}
MUTATIONS = [
    (Reduction.ROW_PARALLEL_OUTPUT, named_case("tp2", **TP2)),
    (Reduction.COLUMN_PARALLEL_INPUT_GRADIENT, named_case("tp2", **TP2)),
    (Reduction.EMBEDDING_OUTPUT, named_case("tp2", **TP2)),
    (Reduction.HEAD_INPUT_GRADIENT, named_case("tp2", **TP2)),
    (Reduction.LARGEST_LOGIT, named_case("tp2", **TP2)),
    (Reduction.EXPONENTIALS, named_case("tp2", **TP2)),
    (Reduction.TARGET_LOGIT, named_case("tp2", **TP2)),
    (Reduction.TIED_GRADIENT, named_case("tied-pp2", "gpt2-tied", **PP2)),
    (Reduction.DATA_PARALLEL_GRADIENT, named_case("dp2", **DP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, named_case("tp2", **TP2)),
    (Reduction.NORM_OVER_STAGES, named_case("pp2", **PP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, named_case("deepspeed-tp2", **DEEPSPEED, **TP2)),
    (Reduction.NORM_OVER_STAGES, named_case("deepspeed-pp2", **DEEPSPEED, **PP2)),
    ("deepspeed_clipping", named_case("deepspeed-pp2", **DEEPSPEED, **PP2)),
    ("deepspeed_tied_gradients", named_case("deepspeed-tied-pp2", "gpt2-tied", **DEEPSPEED, **PP2)),
    ("deepspeed_parameter_marks", named_case("deepspeed-tp2-dp2-zero1", zero_stage=1, **DEEPSPEED, **TP2, **DP2)),
    ("deepspeed_parameter_marks", named_case("tied-zero1", "gpt2-tied", zero_stage=1, **DEEPSPEED, **PP2, **DP2)),
]


def test_every_reduction_has_a_test_that_switches_it_off():
    assert {name for name, _ in MUTATIONS} >= set(Reduction)


@pytest.mark.parametrize(("without", "given"), MUTATIONS, ids=[f"{name}-{given.name}" for name, given in MUTATIONS])
def test_without_any_one_reduction_or_guard_the_training_is_another(parity, without, given):
    try:
        trained = parity.train_without(given, without, steps=3)
    except RanksFailed:
        return
    assert parity.difference(given, trained).value > CPU_TOLERANCES["fp32"]
