"""One rank's trial from the first import of torch to the outcome."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trials.classify import outcome_fault
from trials.folder import AttemptFolder
from trials.measure import measured_fields, slow_ranks
from trials.ranks.environment import RankEnvironment, process_age_s
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.train.data import training_data
from trials.train.device import Device, open_device, select_attention_kernel
from trials.train.engine import Engine, Training, build_engine
from trials.train.exchange import RankCount, RankPlace, exchange_counts, exchange_places
from trials.train.fingerprint import fingerprint, probe_ms_by_rank
from trials.train.loop import TrainingLoop, open_metrics
from trials.train.optimizer import Optimisation
from trials.train.proof import proof_of, samples_fault
from trials.train.weights import WeightSource
from trials.train.world import join_world
from trials.trial import FailureReason, TrialSpec


def run_trial(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    """Train this rank's part and, on rank 0, write the measured outcome. Raises whatever ends the trial early."""
    spec = replace(spec, layout=spec.layout.canonical())
    startup = Startup()
    device = open_device(spec, env.local_rank)
    select_attention_kernel(spec.layout.attention_kernel)
    startup.end_of("import")
    report.progress()
    world = join_world(spec, folder, env, device)
    places = exchange_places(RankPlace(socket.gethostname(), device.probe_ms()))
    startup.end_of("rendezvous")
    report.enter("build")
    if spec.measure.memory_limit_gib is not None:
        device.limit_memory(spec.measure.memory_limit_gib)
    engine = build_engine(_training(spec, device), world)
    device.forget_peak()
    startup.end_of("build")
    loop = TrainingLoop(spec, engine, training_data(spec, world.at.data, device.torch_device), device, report)
    loop.run(open_metrics(folder, env.rank, env.restart))
    startup.end_of("warmup", loop.warmed_up_at_s)
    counts = exchange_counts(_count(engine, device), device.torch_device)
    if env.rank == 0:
        measured = measured_fields(spec, loop.records) | peak_memory(counts, device) | startup.fields()
        traits = {"flags": flags_of(loop, places), "fingerprint": fingerprint(spec, device, places)}
        _publish(spec, report, loop, counts, measured=measured, **traits)


class Startup:
    """Where the seconds before the first measured step went, from the start of this process on."""

    def __init__(self) -> None:
        self._ends_s: dict[str, float] = {}

    def end_of(self, part: str, at_s: float | None = None) -> None:
        """`part` began where the one before ended; it ends now, or did at this age of the process."""
        self._ends_s[part] = process_age_s() if at_s is None else at_s

    def fields(self) -> dict[str, Any]:
        """The contract's `startup_s` and `startup_parts_s`."""
        ends = [0.0, *self._ends_s.values()]
        lengths = (end - begin for begin, end in pairwise(ends))
        return {"startup_s": ends[-1], "startup_parts_s": dict(zip(self._ends_s, lengths, strict=True))}


def peak_memory(counts: Sequence[RankCount], device: Device) -> dict[str, float]:
    """Maximum over all ranks; what only a GPU's allocator tells is absent on a CPU."""
    fields = {"peak_memory_gib": max(c.peak_gib for c in counts)}
    if not device.is_cpu:
        fields["peak_memory_allocated_gib"] = max(c.peak_allocated_gib for c in counts)
    return fields


def flags_of(loop: TrainingLoop, places: Sequence[RankPlace]) -> tuple[str, ...]:
    """The loop's flags, and the suspicion that falls on it when a device was slower than the others from the start."""
    of_places = ("suspect_node",) if slow_ranks(probe_ms_by_rank(places)) else ()
    return tuple(dict.fromkeys((*loop.flags, *of_places)))


def _training(spec: TrialSpec, device: Device) -> Training:
    weights = WeightSource(spec.seed, device.torch_device)
    return Training(spec.model, spec.layout, weights, Optimisation())


def _count(engine: Engine, device: Device) -> RankCount:
    sizes, counts = engine.group_sizes(), engine.counts()
    return RankCount(
        tensor_parallel=sizes.tensor_parallel,
        pipeline_parallel=sizes.pipeline_parallel,
        data_parallel=sizes.data_parallel,
        parameters=counts.parameters,
        optimizer_parameters=counts.optimizer_parameters,
        micro_batches=counts.micro_batches,
        samples=counts.samples,
        peak_gib=device.peak_gib(),
        peak_allocated_gib=device.peak_allocated_gib() or 0.0,
    )


def _publish(spec: TrialSpec, report: Report, loop: TrainingLoop, counts: Sequence[RankCount], **fields: Any) -> None:
    """Write the measured outcome, or raise TrialFailure when what was counted is not what the spec says."""
    steps = len(loop.records)
    proof = proof_of(spec, counts, steps)
    outcome = report.outcome(proof=proof, step_times_s=tuple(loop.measurement.step_times_s), **fields)
    fault = outcome_fault(spec, outcome) or samples_fault(spec, proof, steps)
    if fault is not None:
        raise TrialFailure(FailureReason.RESULT_INVALID, fault)
    report.measured(outcome)
