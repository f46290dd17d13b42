"""Selftest (`parlay selftest`): the cases that ranks train, and a result for each.

A case trains a small model for a few steps by one layout, whose losses and gradient norms must be those of a plain GPT
(docs/selftest.md). Standard library only: the compute side reads the spec.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from search_spaces.decoding import JsonObject, decode_value, encode
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.files.folders import read_as, write_json
from trials.measure_rules import MeasureRules
from trials.trial import LowerStrEnum, TrialKind, TrialSpec

SEED = 7
HANG_LIMIT_S = 20.0
"""Seconds without progress after which the case `hang` ends itself, counted from the end of its imports."""

CPU_TOLERANCES = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-2}
"""Largest absolute difference of any loss or gradient norm of ten steps. bf16 and fp16 are compared with a plain GPT
under autocast: they keep 8 and 11 bits of a number, and round at other places than the reference."""

GPU_TOLERANCES = CPU_TOLERANCES | {"fp32": 1e-4}
"""On a GPU the order of a sum depends on the kernel, which depends on the size of a rank's matrix: each product differs
in about the last bit, and ten steps of AdamW amplify that more than on a CPU. TF32 stays off: it alone would cause
differences of 1e-3."""


class ExpectedResult(LowerStrEnum):
    """Expected result of a case: it agrees with a plain GPT, or fails for this reason on all its ranks."""

    AGREES = "agrees"
    GPU_OOM = "gpu_oom"
    HANG = "hang"


@dataclass(frozen=True)
class Case(JsonObject):
    """One layout of one small model. `shape` names the model."""

    name: str
    shape: str
    model: ModelShape
    layout: Layout
    expected: ExpectedResult = ExpectedResult.AGREES


@dataclass(frozen=True)
class CaseResult:
    """Result of a case. `difference` is absent where none was computed; `message` is the reason of a failure."""

    name: str
    ranks: int
    passed: bool
    difference: float | None
    tolerance: float | None
    seconds: float
    message: str | None = None


@dataclass(frozen=True)
class RankTraining:
    """One rank's training of some steps: the loss of its samples (None without a head), the gradient norm over the
    whole model before clipping, and its engine's counts (`EngineCounts`)."""

    losses: tuple[float | None, ...]
    grad_norms: tuple[float, ...]
    parameters: int
    trainable_parameters: int
    micro_batches: float


@dataclass(frozen=True)
class ReferenceTraining:
    """The plain GPT's training of the same steps: losses of the global batch, and gradient norms before clipping."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


@dataclass(frozen=True)
class LargestDifference:
    """The largest difference between two trainings, and where it is."""

    value: float
    what: str
    step: int

    def __str__(self) -> str:
        return f"{self.value:.1e} ({self.what} of step {self.step})"


def largest_difference(ranks: Sequence[RankTraining], reference: ReferenceTraining) -> LargestDifference:
    """The largest difference in the losses over all ranks with a head, and in each rank's norms; NaN counts as
    largest."""
    norms = [_differences("gradient norm", rank.grad_norms, reference.grad_norms) for rank in ranks]
    differences = [*_differences("loss", _mean_losses(ranks), reference.losses), *chain.from_iterable(norms)]
    return max(differences, key=lambda difference: (math.isnan(difference.value), difference.value))


def _mean_losses(ranks: Sequence[RankTraining]) -> list[float]:
    """A step's loss over the global batch: data-parallel ranks have equally many samples, tensor-parallel ranks the
    same ones."""
    by_step = zip(*(rank.losses for rank in ranks), strict=True)
    return [fmean(loss for loss in losses if loss is not None) for losses in by_step]


def _differences(what: str, ours: Sequence[float], plain: Sequence[float]) -> list[LargestDifference]:
    pairs = zip(ours, plain, strict=False)
    return [LargestDifference(abs(a - b), what, step) for step, (a, b) in enumerate(pairs, start=1)]


def counting_fault(case: Case, ranks: Sequence[RankTraining], steps: int) -> str | None:
    """Evidence that another layout than the case's was trained; None when the counts are the case's."""
    layout, parameters = case.layout, sum(rank.parameters for rank in ranks)
    copies, of_experts = layout.copies(layout.zero_stage == 3)
    routed = case.model.routed_parameters
    if parameters != copies * (case.model.parameters - routed) + of_experts * routed:
        others = f"{copies} x {case.model.parameters - routed} and of experts {of_experts} x {routed}"
        return f"all ranks hold {parameters} parameters, not {others}"
    trainable, of_stages = sum(rank.trainable_parameters for rank in ranks), case.model.trainable_parameters
    if case.model.trainable is not None and trainable * layout.pipeline_parallel != of_stages * layout.num_gpus:
        return f"{trainable} parameters of all ranks train, of a model in which {of_stages} do"
    for rank, training in enumerate(ranks):
        if training.micro_batches != steps * layout.grad_accum_steps:
            expected = f"{steps} steps of {layout.grad_accum_steps}"
            return f"rank {rank} ran {training.micro_batches:g} micro-batches, not {expected}"
    return None


def tolerance_of(case: Case, accelerator: str) -> float:
    return (CPU_TOLERANCES if accelerator == "cpu" else GPU_TOLERANCES)[case.layout.precision]


def judge_case(
    case: Case, accelerator: str, trained: Sequence[RankTraining], reference: ReferenceTraining, seconds: float
) -> CaseResult:
    """A case passes when no difference exceeds the tolerance and the counts of all its ranks are the layout's."""
    difference, tolerance = largest_difference(trained, reference), tolerance_of(case, accelerator)
    fault = counting_fault(case, trained, len(reference.losses))
    if not difference.value <= tolerance:
        fault = f"differs by {difference}, the tolerance is {tolerance:.0e}"
    return CaseResult(case.name, case.layout.num_gpus, fault is None, difference.value, tolerance, seconds, fault)


def case_spec(case: Case, accelerator: str, gpus_per_node: int, measure: MeasureRules | None = None) -> TrialSpec:
    """The case as a trial's spec."""
    layout = case.layout
    return TrialSpec(
        search_id="selftest-aaaaaa",
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=case.model,
        global_batch_size=layout.global_batch_size,
        num_gpus=layout.num_gpus,
        gpus_per_node=gpus_per_node,
        accelerator=accelerator,
        measure=measure or MeasureRules(),
        seed=SEED,
    )


def selftest_section(cases: Sequence[Case]) -> dict[str, Any]:
    """The spec's `trainer` section for these cases, all of one engine and world size."""
    return {"kind": "selftest", "cases": encode(cases)}


def cases_of(trainer: Mapping[str, Any]) -> list[Case]:
    """The inverse of `selftest_section`."""
    return list(decode_value(tuple[Case, ...], trainer["cases"], "cases"))


@dataclass(frozen=True)
class Results(JsonObject):
    """results.json: the results so far. `fingerprint` is as in an outcome, of rank 0's node."""

    SCHEMA = "parlay.selftest_results/1"

    results: tuple[CaseResult, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        write_json(folder / "results.json", self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Results:
        """The results in this folder, empty without a file; ValueError for another schema."""
        return read_as(cls, folder / "results.json") or cls()
