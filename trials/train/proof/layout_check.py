"""Proof that the layout took effect: the ranks' counts compared with the spec."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from search_spaces.layouts.layout import DEGREES, EXPERT_GROUPS, OTHER_DEGREES
from trials.fork_server.stub import node_name
from trials.measurement.device_memory import RankMemory
from trials.measurement.protocol import TwoPointExtrapolation
from trials.ranks.failures import TrialFailure
from trials.train.engines.engine import EngineCounts, GroupSizes
from trials.train.parallel.device import Device
from trials.train.parallel.gather import RankHost, gather_alike
from trials.trial import FailureReason, TrialSpec


@dataclass(frozen=True, kw_only=True)
class RankCount(GroupSizes, EngineCounts):
    """One rank's counts over the whole trial, its memory, and its host's free memory at the end."""

    memory: RankMemory
    host_available_gib: float


def layout_proof(
    spec: TrialSpec,
    counts: Sequence[RankCount],
    planned: Sequence[int],
    extrapolation: TwoPointExtrapolation | None = None,
) -> dict[str, Any]:
    """The contract's outcome.proof. Where ranks disagree, the number that differs from the spec is reported.

    `planned` are the micro-batches planned for each step; `extrapolation` the two kinds of short step that ran where
    the measurement is extrapolated.
    """
    layout, trainable = spec.layout, spec.model.trainable_parameters
    return {
        "world_size": len(counts),
        **{
            name: _first_mismatch((getattr(count, name) for count in counts), getattr(layout, name))
            for name in _groups(spec)
        },
        "parameters": spec.model.parameters,
        "local_parameters_sum": _parameter_sum(
            spec, [c.parameters for c in counts], layout.zero_stage == 3, spec.model.parameters
        ),
        "optimizer_parameters_sum": _parameter_sum(
            spec, [c.optimizer_parameters for c in counts], layout.zero_stage >= 1, trainable
        ),
        **({} if spec.model.trainable is None else {"trainable_parameters": _trainable(spec, counts)}),
        "micro_batches_per_step": _micro_batches_per_step(spec, counts, planned, extrapolation),
        "samples_per_data_rank": _samples_per_data_rank(spec, counts, planned),
    }


def samples_error(spec: TrialSpec, proof: Mapping[str, Any], planned: Sequence[int]) -> str | None:
    """Error in the counted samples, or None."""
    expected = _expected_samples(spec, planned)
    for rank, samples in enumerate(proof["samples_per_data_rank"]):
        if samples != expected:
            trained = f"trained {samples} samples in {len(planned)} steps"
            return f"data-parallel rank {rank} {trained}, the spec says {expected}"
    return None


def locate_ranks(spec: TrialSpec, device: Device) -> list[RankHost]:
    """Every rank's host, in rank order; TrialFailure where the ranks of a node are not consecutive, as every layout
    assumes.

    Collective over the world.
    """
    rank_hosts = gather_alike(RankHost(node_name(), device.probe_ms()), device.torch_device)
    if (fault := placement_error(spec, [rank.host for rank in rank_hosts])) is not None:
        raise TrialFailure(FailureReason.RESULT_INVALID, fault)
    return rank_hosts


def placement_error(spec: TrialSpec, hosts: Sequence[str]) -> str | None:
    """Error in the placement of the ranks, or None: those of a node have to be consecutive. `hosts` in rank order."""
    for first in range(0, len(hosts), spec.gpus_per_node):
        node = hosts[first : first + spec.gpus_per_node]
        if len(set(node)) > 1:
            found = f"ranks {first} to {first + len(node) - 1} run on {', '.join(dict.fromkeys(node))}"
            return f"{found}, but should share a node: start the ranks node by node"
    return None


def _micro_batches_per_step(
    spec: TrialSpec, counts: Sequence[RankCount], planned: Sequence[int], extrapolation: TwoPointExtrapolation | None
) -> float | list[int]:
    """The planned number where all ranks ran it, else the mean of the first rank that did not."""
    ran = _first_mismatch((c.micro_batches for c in counts), sum(planned))
    if ran != sum(planned):
        return ran / len(planned)
    return spec.layout.grad_accum_steps if extrapolation is None else [extrapolation.short, extrapolation.long]


def _trainable(spec: TrialSpec, counts: Sequence[RankCount]) -> float:
    """Parameters of all stages that require gradients; each tensor-parallel rank counts those of its stage."""
    by_replica = _by_index(spec, [count.trainable_parameters for count in counts], "dp", "cp")
    sums = (sum(members) / spec.layout.tensor_parallel for members in by_replica)
    return _first_mismatch(sums, spec.model.trainable_parameters)


def _parameter_sum(spec: TrialSpec, held: Sequence[float], is_shared: bool, expected: int) -> float:
    """Sum of the counts that should hold each of the expected parameters once: over the data- and context-parallel
    ranks of a replica where they share, else per such rank."""
    has_experts = spec.model.num_experts is not None and expected == spec.model.parameters
    if has_experts and not spec.layout.splits_experts_as_layers:
        return _sum_with_experts(spec, held, is_shared)
    by_shard = [sum(members) for members in _by_index(spec, held, "dp", "cp")]
    sharing = spec.layout.shards if is_shared else 1
    sums = [sum(by_shard[first : first + sharing]) for first in range(0, len(by_shard), sharing)]
    return _first_mismatch(sums, expected)


def _sum_with_experts(spec: TrialSpec, held: Sequence[float], is_shared: bool) -> float:
    """The model's parameters where all ranks together hold as many copies as they should, of experts other ones than of
    the rest; else the sum over the copies of the rest."""
    model, (copies, of_experts) = spec.model, spec.layout.copies(is_shared)
    expected = copies * (model.parameters - model.routed_parameters) + of_experts * model.routed_parameters
    return model.parameters if sum(held) == expected else sum(held) / copies


def _groups(spec: TrialSpec) -> tuple[str, ...]:
    """Sizes of groups that a proof has; context-parallel ones where there are some, and those of experts."""
    others = (name for name in OTHER_DEGREES.values() if getattr(spec.layout, name) > 1)
    return (*DEGREES.values(), *others, *(EXPERT_GROUPS if spec.model.num_experts is not None else ()))


def _samples_per_data_rank(spec: TrialSpec, counts: Sequence[RankCount], planned: Sequence[int]) -> list[float]:
    expected = _expected_samples(spec, planned)
    samples = [c.samples for c in counts]
    return [_first_mismatch(members, expected) for members in _by_index(spec, samples, "dp")]


def _expected_samples(spec: TrialSpec, planned: Sequence[int]) -> int:
    return spec.layout.micro_batch_size * sum(planned)


def _by_index(spec: TrialSpec, values: Sequence[float], *dims: str) -> list[list[float]]:
    """The ranks' values by their index along these dimensions, the last one of which is the innermost."""
    mesh = spec.layout.mesh
    members: dict[tuple[int, ...], list[float]] = {at: [] for at in product(*(range(mesh.sizes[dim]) for dim in dims))}
    for rank, value in enumerate(values):
        at = mesh.coordinates(rank)
        members[tuple(at[dim] for dim in dims)].append(value)
    return list(members.values())


def _first_mismatch(values: Iterable[float], expected: int) -> float:
    """The first value that differs from the expected one, as an integer where it is whole; else the expected one."""
    for value in values:
        if value != expected:
            return int(value) if value == int(value) else value
    return expected
