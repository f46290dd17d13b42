"""Proof that the layout took effect: what the ranks counted, against what the spec says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trials.train.exchange import RankCount
from trials.train.world import Coordinates
from trials.trial import TrialSpec


def proof_of(spec: TrialSpec, counts: Sequence[RankCount], steps: int) -> dict[str, Any]:
    """The contract's outcome.proof. Where ranks disagree, the number that is not the spec's is the one shown."""
    layout = spec.layout
    return {
        "world_size": len(counts),
        "tensor_parallel": _dissent((c.tensor_parallel for c in counts), layout.tensor_parallel),
        "pipeline_parallel": _dissent((c.pipeline_parallel for c in counts), layout.pipeline_parallel),
        "data_parallel": _dissent((c.data_parallel for c in counts), layout.data_parallel),
        "parameters": spec.model.parameters,
        "local_parameters_sum": _sum(spec, [c.parameters for c in counts], layout.zero_stage == 3),
        "optimizer_parameters_sum": _sum(spec, [c.optimizer_parameters for c in counts], layout.zero_stage >= 1),
        "micro_batches_per_step": _dissent((c.micro_batches / steps for c in counts), layout.grad_accum_steps),
        "samples_per_data_rank": _samples_per_data_rank(spec, counts, steps),
    }


def samples_fault(spec: TrialSpec, proof: dict[str, Any], steps: int) -> str | None:
    """What is wrong with the samples that were counted, or None."""
    expected = _samples_of_a_data_rank(spec, steps)
    for rank, samples in enumerate(proof["samples_per_data_rank"]):
        if samples != expected:
            return f"data rank {rank} trained {samples} samples in {steps} steps, the spec says {expected}"
    return None


def _sum(spec: TrialSpec, held: Sequence[float], is_shared: bool) -> float:
    """Who together should hold every parameter once: all ranks where data ranks share, else each data rank's own."""
    model = spec.model.parameters
    if is_shared:
        return _dissent([sum(held)], model)
    return _dissent([sum(members) for members in _by_data_rank(spec, held)], model)


def _samples_per_data_rank(spec: TrialSpec, counts: Sequence[RankCount], steps: int) -> list[float]:
    expected = _samples_of_a_data_rank(spec, steps)
    samples = [c.samples for c in counts]
    return [_dissent(members, expected) for members in _by_data_rank(spec, samples)]


def _samples_of_a_data_rank(spec: TrialSpec, steps: int) -> int:
    return spec.layout.micro_batch_size * spec.layout.grad_accum_steps * steps


def _by_data_rank(spec: TrialSpec, values: Sequence[float]) -> list[list[float]]:
    members: list[list[float]] = [[] for _ in range(spec.layout.data_parallel)]
    for rank, value in enumerate(values):
        members[Coordinates.of(rank, spec.layout).data].append(value)
    return members


def _dissent(values: Iterable[float], expected: int) -> float:
    """The first value that is not the expected one, whole where it is whole; else the expected one."""
    for value in values:
        if value != expected:
            return int(value) if value == int(value) else value
    return expected
