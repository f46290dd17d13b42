"""Results of self-test cases from the files of their ranks. Pure; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trials.diagnostics.selftest import (
    Case,
    CaseResult,
    RankTraining,
    ReferenceTraining,
    counting_fault,
    largest_difference,
    tolerance_of,
)


def judge_agreement(
    case: Case,
    accelerator: str,
    trained: Sequence[RankTraining],
    reference: ReferenceTraining | None,
    outcome: Mapping[str, Any] | None,
    seconds: float,
) -> CaseResult:
    """A case passes when every rank trained, the counts match the layout and no difference exceeds the tolerance.

    `reference` is None when there is nothing to compare, because a rank failed.
    """
    ranks, tolerance = case.layout.num_gpus, tolerance_of(case, accelerator)
    if reference is None or len(trained) < ranks:
        message = (
            _describe_outcome(outcome)
            or f"{ranks - len(trained)} of {ranks} ranks ended without an outcome; see the ranks' logs"
        )
        return CaseResult(case.name, ranks, False, None, tolerance, seconds, message)
    difference = largest_difference(trained, reference)
    fault = counting_fault(case, trained, len(reference.losses))
    if difference.value <= tolerance:
        return CaseResult(case.name, ranks, fault is None, difference.value, tolerance, seconds, fault)
    message = f"differs by {difference}, the tolerance is {tolerance:.0e}"
    return CaseResult(case.name, ranks, False, difference.value, tolerance, seconds, message)


def judge_failure(
    case: Case, codes: Sequence[int | None], outcome: Mapping[str, Any] | None, seconds: float
) -> CaseResult:
    """A case that must fail passes when its outcome has the expected reason and every rank ended by itself with an
    error.

    `codes`: each rank's exit code, None for one that had to be killed or left no file.
    """
    reason = None if outcome is None else outcome["reason"]
    stuck = [rank for rank, code in enumerate(codes) if code is None]
    if reason == case.expected.value and not stuck and 0 not in codes:
        return CaseResult(case.name, len(codes), True, None, None, seconds)
    found = f"ended {'as ' + reason if reason else 'without an outcome'} instead of {case.expected}"
    if reason == case.expected.value:
        found = f"ranks that did not end by themselves: {stuck}" if stuck else "a rank exited with code 0"
    return CaseResult(case.name, len(codes), False, None, None, seconds, found)


def _describe_outcome(outcome: Mapping[str, Any] | None) -> str | None:
    if outcome is None:
        return None
    last_line = (outcome["excerpt"] or "").strip().splitlines()[-1:]
    return ": ".join([f"rank {outcome['rank']}: {outcome['reason']}", *last_line])
