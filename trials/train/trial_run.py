"""One rank's trial from the first import of torch to the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from search_spaces.routing import Routing
from trials.analysis.early_stopping import IncumbentWatcher, may_stop_early, pruned_detail
from trials.attempt_result import outcome_fault
from trials.files.folders import AttemptFolder, write_json
from trials.measurement.device_memory import RankMemory, device_memory_fields, fullest_rank
from trials.measurement.energy import energy_fault, energy_fields
from trials.measurement.expert_load import ExpertLoad, load_error
from trials.measurement.metrics import epoch_fields, measured_metrics
from trials.measurement.protocol import StopReason, slow_ranks
from trials.measurement.step_log import StepPhase
from trials.measurement.stragglers import rank_times, slowest_rank
from trials.outcome_types import FullestRank, MeasuredMetrics, SlowestRank
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.ranks.startup import Startup, StartupPart
from trials.train.data import training_data
from trials.train.engines.engine import Engine, TrainingConfig
from trials.train.engines.factory import build_engine, import_training
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.measurement.loop import TrainingLoop, open_metrics
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.device import Device, available_gib, open_device, select_attention_kernel
from trials.train.parallel.gather import RankHost, barrier, gather_alike, sum_expert_tokens
from trials.train.parallel.process_groups import join_world
from trials.train.proof.fingerprint import common_software, fingerprint, probe_ms_by_rank
from trials.train.proof.layout_check import RankCount, layout_proof, locate_ranks, samples_error
from trials.trial import FailureReason, Flag, Outcome, TrialSpec


def run_trial(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    """Train this rank's part and, on rank 0, write the measurement. Raises whatever ends the trial early."""
    spec = replace(spec, layout=spec.layout.canonical())
    startup = Startup()
    startup.end_of(StartupPart.IMPORT)
    # Before the imports: a library that asks for a device while it is imported then asks for this rank's.
    device = open_device(spec, env.local_rank)
    startup.end_of(StartupPart.RENDEZVOUS)
    import_training(spec.layout, device.is_cpu, spec.model.adapters)
    select_attention_kernel(spec.layout.attention_kernel)
    startup.end_of(StartupPart.IMPORT)
    report.progress()
    world = join_world(spec, folder, env, device)
    rank_hosts = locate_ranks(spec, device)
    startup.end_of(StartupPart.RENDEZVOUS)
    if spec.measure.memory_limit_gib is not None:
        device.limit_memory(spec.measure.memory_limit_gib)
    report.enter("build")
    engine = build_engine(_training_config(spec, device), world)
    device.reset_peak()
    found = fingerprint(spec, device, rank_hosts, common_software(spec, device, engine.chunks))
    watcher = _incumbent_watcher(spec, folder, found) if env.rank == 0 else None
    data = training_data(spec, world.coordinates["dp"], device.torch_device)
    loop = TrainingLoop(spec, engine, data, device, report, startup, watcher)
    loop.run(open_metrics(folder, env.rank, env.restart))
    counts = gather_alike(_rank_count(engine, device, loop.outside_gib), device.torch_device)
    load, energy = _expert_load(spec, loop, device), _energy(spec, loop, device)
    outcome = None
    if env.rank == 0:
        hosts = [rank.host for rank in rank_hosts]
        fullest = fullest_rank([count.memory for count in counts], hosts, spec.measure.memory_limit_gib)
        metrics = replace(_metrics(spec, loop, counts, startup, fullest), **load, **energy)
        proof = layout_proof(spec, counts, loop.micro_batches, loop.extrapolation)
        if energy:
            found["energy_counter"] = loop.energy.library
        slowest = _slowest_rank(spec, loop, hosts, folder.rank_times(env.restart))
        flags = flags_of(loop, rank_hosts, metrics, slowest)
        traits: dict[str, Any] = {"flags": flags, "proof": proof, "fingerprint": found}
        traits |= {"slowest_rank": slowest, "fullest_rank": fullest}
        outcome = _outcome(report, loop, watcher, metrics, **traits)
        _require_plausible(spec, loop, outcome)
        report.write(outcome)
    if spec.measure.profile and loop.measurement.stop is not StopReason.PRUNED:
        barrier(device.torch_device)
        device.synchronize()  # completes the barrier on a GPU: from here on the outcome is written
        from trials.train.measurement.profile import add_breakdown

        add_breakdown(spec, loop, device, report, outcome)


def _peak_memory(ranks: Sequence[RankMemory]) -> dict[str, Any]:
    """Maximum over all ranks; a GPU allocator's peak is absent on a CPU."""
    allocated = [memory.peak_allocated_gib for memory in ranks if memory.peak_allocated_gib is not None]
    fields = {"peak_memory_gib": max(memory.peak_gib for memory in ranks)}
    return fields | {"peak_memory_allocated_gib": max(allocated)} if allocated else fields


def flags_of(
    loop: TrainingLoop, rank_hosts: Sequence[RankHost], metrics: MeasuredMetrics, slowest: SlowestRank | None
) -> tuple[str, ...]:
    """The loop's flags, plus those of slow devices, stragglers, and host memory that grows.

    A straggler makes its node suspect where its host may have slowed it down: not among ranks that share a CPU.
    """
    is_straggling = slowest is not None and bool(slowest["stragglers"])
    is_shared_cpu = all(host.probe_ms is None for host in rank_hosts) and len({host.host for host in rank_hosts}) == 1
    is_slow = bool(slow_ranks(probe_ms_by_rank(rank_hosts)))
    found = {
        Flag.SUSPECT_NODE: is_slow or (is_straggling and not is_shared_cpu),
        Flag.STRAGGLER: is_straggling,
        Flag.HOST_MEMORY_GROWTH: metrics.host_memory_full_at_step is not None,
        Flag.DEVICE_MEMORY_GROWTH: metrics.device_memory_full_at_step is not None,
    }
    return tuple(dict.fromkeys((*loop.flags, *(flag for flag, is_so in found.items() if is_so))))


def _slowest_rank(spec: TrialSpec, loop: TrainingLoop, hosts: Sequence[str], path: Path) -> SlowestRank | None:
    """The rank that computes longest, and all ranks' times in the file at `path`; None where they are unknown."""
    steps = loop.compared_steps_s
    times = rank_times(spec.layout, spec.measure.routing, steps, spec.model.document_length is not None)
    if times:
        ranks = [{"rank": rank, "host": hosts[rank], **asdict(one)} for rank, one in enumerate(times)]
        write_json(path, {"steps": len(steps), "ranks": ranks})
    return slowest_rank(times, hosts, len(steps))


def _incumbent_watcher(
    spec: TrialSpec, folder: AttemptFolder, fingerprint: Mapping[str, Any]
) -> IncumbentWatcher | None:
    """Watcher of the incumbent; None for a trial that is measured to its end, as one on a suspect node is."""
    if not may_stop_early(spec) or "slow_hosts" in fingerprint:
        return None
    return IncumbentWatcher(spec, folder.best, fingerprint)


def _training_config(spec: TrialSpec, device: Device) -> TrainingConfig:
    weights = WeightSource(spec.seed, device.torch_device)
    return TrainingConfig(spec.model, spec.layout, weights, OptimizerConfig(), Routing.of(spec.measure.routing))


def _rank_count(engine: Engine, device: Device, outside_gib: float | None) -> RankCount:
    return RankCount(
        **asdict(engine.group_sizes()),
        **asdict(engine.counts()),
        memory=device.peak_memory(outside_gib),
        host_available_gib=available_gib(),
    )


def _expert_load(spec: TrialSpec, loop: TrainingLoop, device: Device) -> dict[str, Any]:
    """Tokens of the experts in a step; empty without experts. TrialFailure where their loads are not those asked for.
    Collective over the world."""
    if spec.model.num_experts is None:
        return {}
    counted = sum_expert_tokens(loop.measured_expert_tokens(), spec.model, device.torch_device)
    measured = (record.samples for record in loop.records if record.phase is StepPhase.MEASURED)
    if (found := load_error(spec, counted, sum(measured))) is not None:
        raise TrialFailure(FailureReason.RESULT_INVALID, found)
    load = ExpertLoad.of(spec, counted)
    return {"expert_tokens_mean": load.mean, "expert_tokens_most": load.most}


def _energy(spec: TrialSpec, loop: TrainingLoop, device: Device) -> dict[str, Any]:
    """Energy of a token over all ranks; empty on a CPU, where steps were shortened, and where it is not known.
    TrialFailure where it is an objective and not known. Collective over the world."""
    if device.is_cpu or loop.extrapolation is not None:
        return {}
    ranks = gather_alike(loop.energy.used(), device.torch_device)
    if spec.measure.energy and (fault := energy_fault(ranks)) is not None:
        raise TrialFailure(FailureReason.ENERGY_UNKNOWN, fault)
    samples = sum(record.samples for record in loop.records if record.phase is StepPhase.MEASURED)
    return energy_fields(ranks, samples * spec.model.seq_length)


def _metrics(
    spec: TrialSpec,
    loop: TrainingLoop,
    counts: Sequence[RankCount],
    startup: Startup,
    fullest: FullestRank,
) -> MeasuredMetrics:
    available_gib = min(c.host_available_gib for c in counts)
    metrics = measured_metrics(spec, loop.records, loop.extrapolation, available_gib)
    others = epoch_fields(spec, loop.records) | _peak_memory([c.memory for c in counts]) | startup.fields()
    others |= device_memory_fields(loop.records, fullest)
    return replace(metrics, **others)


def _outcome(
    report: Report, loop: TrainingLoop, watcher: IncumbentWatcher | None, metrics: MeasuredMetrics, **traits: Any
) -> Outcome:
    """The outcome of the measurement, with these fields besides."""
    fields = {**traits, "measured": metrics, "step_times_s": tuple(record.step_time_s for record in loop.records)}
    incumbent = None if watcher is None else watcher.incumbent
    if loop.measurement.stop is StopReason.PRUNED and incumbent is not None:
        return report.pruned(pruned_detail(metrics, incumbent), **fields)
    return report.outcome(**fields)


def _require_plausible(spec: TrialSpec, loop: TrainingLoop, outcome: Outcome) -> None:
    """TrialFailure where the ranks' counts differ from the spec, or a number cannot be."""
    fault = samples_error(spec, outcome.proof, loop.micro_batches) or outcome_fault(spec, outcome)
    if fault is not None:
        raise TrialFailure(FailureReason.RESULT_INVALID, fault)
