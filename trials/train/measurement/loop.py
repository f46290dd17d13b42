"""Training loop of a trial: steps, clock and records, until the measurement is done."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch

from trials.analysis.early_stopping import IncumbentWatcher
from trials.files.folders import AttemptFolder
from trials.measurement.metrics import throughput_bound
from trials.measurement.protocol import (
    Measurement,
    StepPlan,
    StopReason,
    TwoPointExtrapolation,
    is_slower_than,
    median_interval,
    slows_down,
)
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord
from trials.measurement.stragglers import rank_times
from trials.ranks.allocator import STEPS_PER_TRIM, trim_heap
from trials.ranks.environment import compiles, process_age_s
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.ranks.startup import Startup, StartupPart
from trials.train.data import Batch, TrainingData
from trials.train.engines.engine import Engine, StepResult
from trials.train.parallel.collective_waits import CollectiveWaits
from trials.train.parallel.device import Device, Utilization, resident_gib
from trials.train.parallel.energy import EnergyMeter
from trials.train.parallel.gather import RankStep, barrier, gather_steps
from trials.trial import FailureReason, Flag, TrialKind, TrialSpec, utc_text

MAX_SKIPPED_FRACTION = 0.1
"""Share of measured steps that fp16 may skip because of overflow."""


class TrainingLoop:
    """Runs an engine until the measurement stops. Every rank sees the same numbers and stops after the same step.

    `watcher` is given to rank 0 only, and only where the trial may stop early for a better layout. `startup` is ended
    here, with first step and warm-up. `micro_batches` are those of each step that ran, `elapsed_s` is the age of rank
    0's process after the last of them, `outside_gib` the most that this rank's device had in use outside of the
    allocator (None on a CPU). `energy` is that of this rank's device over the measured steps.
    """

    def __init__(
        self,
        spec: TrialSpec,
        engine: Engine,
        data: TrainingData,
        device: Device,
        report: Report,
        startup: Startup,
        watcher: IncumbentWatcher | None = None,
    ):
        self.measurement = Measurement(spec.measure, is_finalist=spec.kind is TrialKind.REPEAT)
        self.step_plan = StepPlan(spec)
        self.micro_batches: list[int] = []
        self.records: list[StepRecord] = []
        self.elapsed_s = 0.0
        self.outside_gib: float | None = None
        self._compute_times_s: dict[int, list[list[float]]] = {}
        self._waits = CollectiveWaits(spec.layout, device)
        self._keeps_compute_times = False
        self._expert_tokens_before: Mapping[int, torch.Tensor] = {}
        self._spec = spec
        self._engine = engine
        self._data = data
        self._device = device
        self._report = report
        self._startup = startup
        self._is_warm = False
        self._watcher = watcher
        self._utilization = Utilization(device)
        self.energy = EnergyMeter(device)
        for chunk in engine.chunks:
            # A full step may take longer than the hang limit; a micro-batch does not.
            chunk.register_forward_pre_hook(lambda *_: report.progress())

    def run(self, writer: MetricsWriter | None) -> None:
        """Train and measure; `writer` on one rank only. TrialFailure where the time limit is too short or the loss
        diverges."""
        self._startup.end_of(StartupPart.BUILD)
        self._report.enter(StepPhase.WARMUP)
        self._keeps_compute_times = writer is not None
        with self._waits.watched():
            while self.measurement.stop is None:
                record = self._one_step()
                if writer is not None:
                    writer.write(record)
                self._report.progress()
                self._note_startup()
                if self._device.is_cpu and len(self.records) % STEPS_PER_TRIM == 0:
                    trim_heap()
        self.energy.end()
        if self.measurement.stop is StopReason.TIME_LIMIT and not self.measurement.has_enough_steps:
            bound = throughput_bound(self._spec, self.measurement)
            raise TrialFailure(FailureReason.TIME_LIMIT, self._too_few_steps(), bound)
        if (found := skipped_steps_error(self.records)) is not None:
            raise TrialFailure(FailureReason.RESULT_INVALID, found)

    def train(self, micro_batches: int) -> StepResult:
        """One more step with the next data, outside of the measurement."""
        batch = self._data.begin(len(self.micro_batches))()
        self.micro_batches.append(micro_batches)
        return self._engine.train_step(self._shortened(batch, micro_batches))

    def _one_step(self) -> StepRecord:
        number, phase = len(self.records) + 1, self.measurement.phase
        self.micro_batches.append(self.step_plan.micro_batches)
        views = gather_steps(self._timed_step(number), self._device.torch_device)
        record = step_record(self._spec, number, phase, views)
        self.records.append(record)
        self._waits.limit_cost(int(max(view.timed_calls for view in views)), record.step_time_s)
        if phase is StepPhase.MEASURED:
            self._note_compute_times(views)
        self._add_to_measurement(record.step_time_s, views[0])
        _require_finite(record)
        return record

    def _add_to_measurement(self, step_time_s: float, of_rank_0: RankStep) -> None:
        """Add the step by rank 0's clock and its view of the incumbent, since ranks did not all start at the same
        moment."""
        self.elapsed_s = of_rank_0.elapsed_s
        timed = self.step_plan.add(step_time_s)
        if timed is None:
            return
        full_s, cost_s = timed
        target_step_time_s = None if math.isnan(of_rank_0.target_step_time_s) else of_rank_0.target_step_time_s
        self.measurement.add(full_s, of_rank_0.elapsed_s, cost_s, target_step_time_s)

    def _note_compute_times(self, views: Sequence[RankStep]) -> None:
        times_s = [max(0.0, view.step_time_s - view.waiting_s) for view in views]
        if self._keeps_compute_times and not any(math.isnan(view.waiting_s) for view in views):
            self._compute_times_s.setdefault(self.micro_batches[-1], []).append(times_s)

    def _timed_step(self, number: int) -> RankStep:
        """This rank's view of a step. The clock includes waiting for data, and stops after the device has finished."""
        take_batch = self._data.begin(number - 1)
        target_step_time_s = self._target_step_time_s()
        samples_before = self._engine.chunks[0].samples
        # Otherwise the others' steps would begin with waiting for rank 0, which does file I/O between steps.
        barrier(self._device.torch_device)
        self._device.synchronize()
        started = time.perf_counter()
        self._waits.begin(number)
        batch = take_batch()
        data_wait_s = time.perf_counter() - started
        batch = self._shortened(batch, self.micro_batches[-1])
        result = self._engine.train_step(batch)
        self._device.synchronize()
        step_time_s = time.perf_counter() - started
        self._waits.end()
        return RankStep(
            step_time_s=step_time_s,
            elapsed_s=process_age_s(),
            loss=math.nan if result.loss is None else float(result.loss),
            grad_norm=float(result.grad_norm),
            samples=self._engine.chunks[0].samples - samples_before,
            allocated_gib=_or_nan(self._device.allocated_gib()),
            reserved_gib=_or_nan(self._device.reserved_gib()),
            host_gib=resident_gib(),
            device_gib=self._device_gib(),
            data_wait_s=data_wait_s,
            target_step_time_s=target_step_time_s,
            gpu_utilization=_or_nan(self._utilization.sample()),
            waiting_s=_or_nan(self._waits.seconds()),
            timed_calls=self._waits.calls,
            squared_lengths=_or_nan(batch.squared_lengths),
        )

    def _device_gib(self) -> float:
        """Memory used of the device, nan on a CPU; notes the most of it that the allocator has not reserved."""
        used_gib, reserved_gib = self._device.used_gib(), self._device.reserved_gib()
        if used_gib is None or reserved_gib is None:
            return math.nan
        self.outside_gib = max(self.outside_gib or 0.0, used_gib - reserved_gib)
        return used_gib

    def _shortened(self, batch: Batch, micro_batches: int) -> Batch:
        """The batch's first `micro_batches` micro-batches."""
        samples = micro_batches * self._spec.layout.micro_batch_size
        if micro_batches == self._spec.layout.grad_accum_steps:
            return batch
        return batch.first(samples)

    def _target_step_time_s(self) -> float:
        """The step time to beat, nan where there is none; the file of incumbents is read from the end of warm-up on."""
        if self._watcher is None or self.measurement.phase is StepPhase.WARMUP:
            return math.nan
        incumbent = self._watcher.look()
        if incumbent is None or self._may_be_held_up(incumbent.step_time_s):
            return math.nan
        return incumbent.step_time_s

    def _may_be_held_up(self, target_step_time_s: float) -> bool:
        """True if the steps so far are too slow and a straggler may be why, or too few to tell."""
        measured_s, compared = self.measurement.measured_times_s, self.compared_steps_s
        if not compared or median_interval(measured_s) is None:
            return bool(compared)
        if not is_slower_than(target_step_time_s, measured_s):
            return False
        by_document = self._spec.model.document_length is not None
        times = rank_times(self._spec.layout, self._spec.measure.routing, compared, by_document)
        return any(one.is_straggler for one in times)

    def _note_startup(self) -> None:
        """Note the end of the first step and that of warm-up."""
        if len(self.records) == 1:
            self._startup.end_of(StartupPart.FIRST_STEP, compile_s=self._compile_s())
        if not self._is_warm and self.measurement.warmup_steps is not None:
            self._is_warm = True
            self._expert_tokens_before = self._engine.expert_tokens()
            self._startup.end_of(StartupPart.WARMUP, compile_s=self._compile_s())
            self._report.enter(StepPhase.MEASURED)
            self.energy.begin()

    def _compile_s(self) -> float | None:
        return _compiled_s() if compiles(self._spec) else None

    def _too_few_steps(self) -> str:
        rules, done = self._spec.measure, len(self.measurement.measured_times_s)
        return (
            f"{done} measured steps after {len(self.records)} steps when the time limit of {rules.time_limit_s:.0f} s "
            f"came near; at least {rules.min_steps} are required"
        )

    def measured_expert_tokens(self) -> dict[int, torch.Tensor]:
        """Tokens that this rank has given to each expert in the measured steps, by layer."""
        before = self._expert_tokens_before
        return {layer: tokens - before[layer] for layer, tokens in self._engine.expert_tokens().items()}

    @property
    def compared_steps_s(self) -> list[list[float]]:
        """The ranks' compute times in the timed steps of one kind, the longer one of an extrapolated measurement; rank
        0 alone has them."""
        return max(self._compute_times_s.items(), default=(0, []))[1]

    @property
    def longest_step_s(self) -> float:
        return max(record.step_time_s for record in self.records if record.phase is StepPhase.MEASURED)

    @property
    def extrapolation(self) -> TwoPointExtrapolation | None:
        """The two kinds of short step, where the measurement is extrapolated."""
        return self.step_plan.extrapolation if self.step_plan.is_extrapolated else None

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of a measurement that was cut short, made in short steps or on an emulated device, or whose node may be
        degraded."""
        found = {
            Flag.TIME_LIMIT: self.measurement.stop is StopReason.TIME_LIMIT,
            Flag.WIDE_INTERVAL: self.measurement.is_wide,
            Flag.EXTRAPOLATED: self.step_plan.is_extrapolated,
            Flag.SUSPECT_NODE: slows_down(self.measurement.measured_times_s),
            Flag.EMULATED_DEVICE: self._spec.is_emulated,
        }
        return tuple(flag for flag, is_so in found.items() if is_so)


def step_record(spec: TrialSpec, number: int, phase: StepPhase, views: Sequence[RankStep]) -> StepRecord:
    """The whole world's step from each rank's view."""
    layout = spec.layout
    with_loss = [views[r] for r in _replica_ranks(spec, stage=layout.head_stage)]
    with_samples = [views[r] for r in _replica_ranks(spec, stage=0)]
    samples = int(sum(v.samples for v in with_samples))
    squared_lengths = sum(v.squared_lengths for v in with_samples)
    return StepRecord(
        step=number,
        phase=phase,
        time=utc_text(),
        step_time_s=max(v.step_time_s for v in views),
        fastest_rank_step_time_s=min(v.step_time_s for v in views),
        loss=sum(v.loss for v in with_loss) / len(with_loss),
        grad_norm=_norm_or_skipped(views[0].grad_norm, layout.precision),
        samples=samples,
        memory_allocated_gib=_largest([v.allocated_gib for v in views]),
        memory_reserved_gib=_largest([v.reserved_gib for v in views]),
        memory_device_gib=_largest([v.device_gib for v in views]),
        host_memory_gib=_fullest_node([v.host_gib for v in views], spec.gpus_per_node),
        data_wait_s=max(v.data_wait_s for v in views),
        gpu_utilization=_mean([v.gpu_utilization for v in views if not math.isnan(v.gpu_utilization)]),
        document_length=_or_none(squared_lengths / (samples * spec.model.seq_length)),
    )


def _compiled_s() -> float | None:
    """Seconds so far for graphs of forward and backward passes, by the compiler's own counters; None for a release of
    torch without them."""
    try:
        from torch._dynamo.utils import calculate_time_spent

        return float(calculate_time_spent()["total_wall_time"])
    except (ImportError, KeyError):
        return None


def _require_finite(record: StepRecord) -> None:
    if math.isfinite(record.loss or 0.0) and (record.grad_norm is None or math.isfinite(record.grad_norm)):
        return
    found = f"loss {record.loss}, gradient norm {record.grad_norm} at step {record.step}"
    raise TrialFailure(FailureReason.RESULT_INVALID, f"{found}: the training diverged")


def skipped_steps_error(records: Sequence[StepRecord]) -> str | None:
    """Error where too many measured steps were skipped by fp16's overflow, which makes them faster; None for a few."""
    measured = [r for r in records if r.phase is StepPhase.MEASURED]
    skipped = sum(r.grad_norm is None for r in measured)
    if skipped <= MAX_SKIPPED_FRACTION * len(measured):
        return None
    return f"gradients overflowed in {skipped} of {len(measured)} measured steps: the loss scale has not settled"


def _norm_or_skipped(norm: float, precision: str) -> float | None:
    """The norm; None for a step that fp16 skipped for overflow. In other precisions an infinite norm is a failed
    training."""
    return None if precision == "fp16" and not math.isfinite(norm) else norm


def open_metrics(folder: AttemptFolder, rank: int, restart: int) -> MetricsWriter | None:
    """Writer of the step records, on rank 0 only."""
    return MetricsWriter(folder.metrics(restart)) if rank == 0 else None


def _replica_ranks(spec: TrialSpec, stage: int) -> list[int]:
    """One rank of each model replica, on this stage."""
    mesh = spec.layout.mesh
    return mesh.group(mesh.rank(pp=stage), "dp")


def _fullest_node(host_gib: Sequence[float], ranks_per_node: int) -> float:
    return max(sum(host_gib[first : first + ranks_per_node]) for first in range(0, len(host_gib), ranks_per_node))


def _largest(values: Sequence[float]) -> float | None:
    return None if any(math.isnan(v) for v in values) else max(values)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
