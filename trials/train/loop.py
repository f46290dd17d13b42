"""The training loop of a trial: steps, the clock, who saw what, until the measurement is done."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from trials.folder import AttemptFolder
from trials.measure import Measurement, Stop, slows_down
from trials.metrics import MetricsWriter, StepPhase, StepRecord
from trials.ranks.environment import process_age_s
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.train.data import TrainingData
from trials.train.device import Device, resident_gib
from trials.train.engine import Engine
from trials.train.exchange import RankStep, exchange_steps
from trials.train.world import Coordinates
from trials.trial import FailureReason, TrialSpec, utc_text


class TrainingLoop:
    """Runs an engine until the measurement stops. Every rank sees the same numbers and stops after the same step."""

    def __init__(self, spec: TrialSpec, engine: Engine, data: TrainingData, device: Device, report: Report):
        self.measurement = Measurement(spec.measure)
        self.records: list[StepRecord] = []
        self.warmed_up_at_s: float | None = None
        self._spec = spec
        self._engine = engine
        self._data = data
        self._device = device
        self._report = report

    def run(self, writer: MetricsWriter | None) -> None:
        """Train and measure; `writer` on one rank only. TrialFailure for a time limit too short or a loss gone mad."""
        self._report.enter(StepPhase.WARMUP)
        while self.measurement.stop is None:
            record = self._one_step()
            self.records.append(record)
            if writer is not None:
                writer.write(record)
            self._report.progress()
            self._note_end_of_warmup()
        if not self.measurement.has_enough_steps:
            raise TrialFailure(FailureReason.TIME_LIMIT, self._too_few_steps())

    def _one_step(self) -> StepRecord:
        number = len(self.records) + 1
        views = exchange_steps(self._timed_step(number), self._device.torch_device)
        # Rank 0's clock decides, since ranks did not all start at the same moment.
        phase = self.measurement.add(max(v.step_time_s for v in views), views[0].elapsed_s)
        record = step_record(self._spec, number, phase, views)
        if not (math.isfinite(record.loss) and math.isfinite(record.grad_norm)):
            found = f"loss {record.loss}, gradient norm {record.grad_norm} at step {number}"
            raise TrialFailure(FailureReason.RESULT_INVALID, f"{found}: not a training that can be measured")
        return record

    def _timed_step(self, number: int) -> RankStep:
        """This rank's view. The clock runs while data is waited for, and is read after the device has finished."""
        take_batch = self._data.begin(number - 1)
        samples_before = self._engine.stages[0].samples
        self._device.synchronize()
        started = time.perf_counter()
        batch = take_batch()
        data_wait_s = time.perf_counter() - started
        result = self._engine.train_step(batch)
        self._device.synchronize()
        step_time_s = time.perf_counter() - started
        return RankStep(
            step_time_s=step_time_s,
            elapsed_s=process_age_s(),
            loss=math.nan if result.loss is None else float(result.loss),
            grad_norm=float(result.grad_norm),
            samples=self._engine.stages[0].samples - samples_before,
            allocated_gib=_or_nan(self._device.allocated_gib()),
            reserved_gib=_or_nan(self._device.reserved_gib()),
            host_gib=resident_gib(),
            data_wait_s=data_wait_s,
        )

    def _note_end_of_warmup(self) -> None:
        if self.warmed_up_at_s is None and self.measurement.warmup_steps is not None:
            self.warmed_up_at_s = process_age_s()
            self._report.enter(StepPhase.MEASURED)

    def _too_few_steps(self) -> str:
        rules, done = self._spec.measure, len(self.measurement.measured_times_s)
        return (
            f"{done} measured steps after {len(self.records)} steps when the limit of {rules.time_limit_s:.0f} s came "
            f"near; {rules.min_steps} are the least that counts"
        )

    @property
    def flags(self) -> tuple[str, ...]:
        """What the contract says of a measurement that was cut short, or whose machine may have been unwell."""
        is_short, drifted = self.measurement.stop is Stop.TIME_LIMIT, slows_down(self.measurement.measured_times_s)
        return (*("time_limit",) * is_short, *("suspect_node",) * drifted)


def step_record(spec: TrialSpec, number: int, phase: StepPhase, views: Sequence[RankStep]) -> StepRecord:
    """The whole world's step from what each rank saw of it."""
    layout = spec.layout
    with_loss = [views[r] for r in _replica_ranks(spec, stage=layout.pipeline_parallel - 1)]
    with_samples = [views[r] for r in _replica_ranks(spec, stage=0)]
    return StepRecord(
        step=number,
        phase=phase,
        time=utc_text(),
        step_time_s=max(v.step_time_s for v in views),
        fastest_rank_step_time_s=min(v.step_time_s for v in views),
        loss=sum(v.loss for v in with_loss) / len(with_loss),
        grad_norm=views[0].grad_norm,
        samples=int(sum(v.samples for v in with_samples)),
        memory_allocated_gib=_largest([v.allocated_gib for v in views]),
        memory_reserved_gib=_largest([v.reserved_gib for v in views]),
        host_memory_gib=_fullest_node([v.host_gib for v in views], spec.gpus_per_node),
        data_wait_s=max(v.data_wait_s for v in views),
    )


def open_metrics(folder: AttemptFolder, rank: int, restart: int) -> MetricsWriter | None:
    """Rank 0 writes the step lines."""
    return MetricsWriter(folder.metrics(restart)) if rank == 0 else None


def _replica_ranks(spec: TrialSpec, stage: int) -> list[int]:
    """One rank of each data rank, on this stage."""
    data_ranks = range(spec.layout.data_parallel)
    return [Coordinates(tensor=0, data=d, stage=stage).rank(spec.layout) for d in data_ranks]


def _fullest_node(host_gib: Sequence[float], ranks_per_node: int) -> float:
    return max(sum(host_gib[first : first + ranks_per_node]) for first in range(0, len(host_gib), ranks_per_node))


def _largest(values: Sequence[float]) -> float | None:
    return None if any(math.isnan(v) for v in values) else max(values)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
