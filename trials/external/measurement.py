"""Measurement of a third-party trainer by its log: step records, when to stop, and the outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from search_spaces.plain_file import open_plain
from trials.analysis.early_stopping import IncumbentWatcher, may_stop_early, pruned_detail
from trials.attempt_result import outcome_fault
from trials.external.checks import (
    batch_fault,
    clock_fault,
    cross_checks,
    interval_check,
    layout_proof,
    lines_fault,
    rate_fault,
)
from trials.files.folders import AttemptFolder, read_json
from trials.measurement.metrics import measured_metrics, throughput_bound, without_padding
from trials.measurement.protocol import Measurement, StopReason, slows_down
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord
from trials.observed_step import of_all_ranks, real_tokens
from trials.outcome_types import MeasuredMetrics, ObservedStep
from trials.ranks.environment import process_age_s
from trials.ranks.failures import TrialFailure
from trials.ranks.report import Report
from trials.ranks.startup import Startup, StartupPart
from trials.trainers.base import train_iterations
from trials.trainers.common.trainer_log import StepLikeLines, StepReader, TrainerStep
from trials.trainers.registry import is_observed, log_format_of
from trials.trial import FailureReason, Flag, Outcome, TrialKind, TrialSpec, utc_text

HEAD_BYTES = 256 * 1024
"""Length of another rank's log that is read: layout and memory are reported at its beginning."""


OBSERVED_STEPS = 2
"""First steps of an observed trainer, which are not measured."""
LATE_FILES_S = 1.0
"""Seconds until a shared file system shows all ranks' reports, which are written steps before."""


class LogMeasurement:
    """Follows one rank's log line by line until the measurement is complete. Used by one thread of one rank."""

    def __init__(
        self,
        spec: TrialSpec,
        folder: AttemptFolder,
        report: Report,
        fingerprint: Mapping[str, Any],
        writer: MetricsWriter,
    ):
        self._format = log_format_of(spec.trainer)
        observed = OBSERVED_STEPS if is_observed(spec.trainer) else 0
        warmup_steps = max(spec.measure.max_warmup_steps, self._format.least_warmup_steps, observed)
        self.measurement = Measurement(
            replace(spec.measure, max_warmup_steps=warmup_steps),
            is_finalist=spec.kind is TrialKind.REPEAT,
        )
        self.startup = Startup()
        self._spec = spec
        self._folder = folder
        self._report = report
        self._fingerprint = fingerprint
        self._reader = StepReader(self._format, spec)
        self._step_like = StepLikeLines()
        self._watcher = IncumbentWatcher(spec, folder.best, fingerprint) if may_stop_early(spec) else None
        self._writer = writer
        self._steps: list[TrainerStep] = []
        self._seen_s: list[float] = []
        self._records: list[StepRecord] = []

    @property
    def is_done(self) -> bool:
        return self.measurement.stop is not None

    @property
    def num_steps(self) -> int:
        return len(self._steps)

    @property
    def num_skipped(self) -> int:
        """Iterations without an update, which the trainer skipped since the loss scale was too large."""
        return self._reader.skipped

    @property
    def has_unread_steps(self) -> bool:
        """True if no line could be read as a step, and so many looked like one that the rest are too few.

        A trainer may log a line a micro-batch, or report every n-th step: then n is smaller than the steps that it is
        told to train over those that a measurement needs.
        """
        fewest_reports = 1 + self._spec.measure.min_steps
        most_before_one = max(train_iterations(self._spec) // fewest_reports, self._spec.layout.grad_accum_steps)
        return not (self._steps or self.num_skipped) and self._step_like.most_alike > most_before_one

    def feed(self, line: str) -> None:
        """Take in a line of the log, unless the measurement is done; TrialFailure for a training that diverged."""
        if self.is_done:
            return
        skipped, step = self._reader.skipped, self._reader.feed(line)
        # Before the first step any output (imports, data, compilation) is progress; afterwards only iterations are.
        if step is not None or not self._steps or self._reader.skipped > skipped:
            self._report.progress()
        if step is None:
            if not self._steps:
                self._step_like.feed(line)
            return
        if step.has_nan:
            found = f"loss {step.loss}, gradient norm {step.grad_norm} at iteration {step.iteration}"
            raise TrialFailure(FailureReason.RESULT_INVALID, f"{found}: the training diverged")
        self._take(step)

    def end_for_time(self) -> None:
        """End the measurement at the time limit; TrialFailure unless there are enough steps."""
        self.measurement.stop = StopReason.TIME_LIMIT
        self.require_enough(FailureReason.TIME_LIMIT, "when the time limit came near")

    def require_enough(self, reason: FailureReason, when: str) -> None:
        """TrialFailure unless there are enough measured steps, or the trial was pruned."""
        if self.measurement.has_enough_steps or self.measurement.stop is StopReason.PRUNED:
            return
        done, least = len(self.measurement.measured_times_s), self._spec.measure.min_steps
        skipped = f", {self._reader.skipped} skipped" if self._reader.skipped else ""
        raise TrialFailure(
            reason,
            f"{done} measured steps after {self.num_steps} steps{skipped} {when}; at least {least} are required",
            throughput_bound(self._spec, self.measurement) if reason is FailureReason.TIME_LIMIT else None,
        )

    def outcome(self) -> Outcome:
        """The outcome of the measurement; TrialFailure where it is implausible."""
        self._read_other_logs()
        seen = self._observed_step()
        metrics = self._metrics(seen)
        steps, seen_s = self._steps[-metrics.measured_steps :], self._seen_s[-metrics.measured_steps :]
        checks = cross_checks(self._spec, metrics, steps) + interval_check(steps, seen_s)
        proof = layout_proof(self._spec, self._reader.proof, seen) | {"cross_checks": checks}
        fields: dict[str, Any] = {
            "measured": metrics,
            "proof": proof,
            "fingerprint": self._fingerprint,
            "step_times_s": tuple(self.measurement.step_times_s),
            "flags": self._flags(proof),
        }
        incumbent = None if self._watcher is None else self._watcher.incumbent
        if self.measurement.stop is StopReason.PRUNED and incumbent is not None:
            outcome = self._report.pruned(pruned_detail(metrics, incumbent), **fields)
        else:
            outcome = self._report.outcome(**fields)
        fault = outcome_fault(self._spec, outcome) or batch_fault(self._spec, checks)
        fault = fault or lines_fault(self._spec, self._seen_s, None if seen is None else seen.at_s)
        if (fault := fault or self._clock_fault(metrics.measured_steps)) is not None:
            raise TrialFailure(FailureReason.RESULT_INVALID, fault)
        return outcome

    def _clock_fault(self, num_steps: int) -> str | None:
        """Check the clock over the measured steps, which are the last."""
        has_iterations = "iteration" in self._format.of_step
        steps, seen_s = self._steps[-num_steps:], self._seen_s[-num_steps:]
        return clock_fault(steps, seen_s, has_iterations) or rate_fault(self._spec, steps, seen_s)

    def _take(self, step: TrainerStep) -> None:
        if not self._steps:
            self.startup.end_of(StartupPart.BUILD, process_age_s() - step.step_time_s)
            self.startup.end_of(StartupPart.FIRST_STEP)
            self._report.enter(StepPhase.WARMUP)
        record = _record(len(self._steps) + 1, self.measurement.phase, step)
        self.measurement.add(step.step_time_s, process_age_s(), target_step_time_s=self._target_step_time_s())
        self._steps.append(step)
        self._seen_s.append(time.monotonic())
        self._records.append(record)
        self._writer.write(record)
        if self.measurement.phase is StepPhase.MEASURED and self._report.phase != StepPhase.MEASURED:
            self.startup.end_of(StartupPart.WARMUP)
            self._report.enter(StepPhase.MEASURED)

    def _target_step_time_s(self) -> float | None:
        """The step time to beat; None without an incumbent, and during warm-up."""
        if self._watcher is None or self.measurement.phase is StepPhase.WARMUP:
            return None
        incumbent = self._watcher.look()
        return None if incumbent is None else incumbent.step_time_s

    def _metrics(self, seen: ObservedStep | None) -> MeasuredMetrics:
        share, length = real_tokens(self._spec, seen)
        records = [replace(record, document_length=length) for record in self._records]
        return replace(
            without_padding(measured_metrics(self._spec, records), share),
            peak_memory_gib=self._reader.peak_memory_gib,
            peak_memory_allocated_gib=self._reader.peak_memory_allocated_gib,
            **self.startup.fields(),
        )

    def _flags(self, proof: Mapping[str, Any]) -> tuple[str, ...]:
        found = {
            Flag.TIME_LIMIT: self.measurement.stop is StopReason.TIME_LIMIT,
            Flag.WIDE_INTERVAL: self.measurement.is_wide,
            Flag.SUSPECT_NODE: slows_down(self.measurement.measured_times_s),
            Flag.UNPROVEN: bool(proof["unproven"]),
            Flag.THROUGHPUT_MISMATCH: not all(check["agrees"] for check in proof["cross_checks"]),
            Flag.EMULATED_DEVICE: self._spec.is_emulated,
        }
        return tuple(flag for flag, is_so in found.items() if is_so)

    def _observed_step(self) -> ObservedStep | None:
        """The second step as all ranks' observers saw it; None unless that of rank 0 did."""
        restart, deadline = self._report.restart, time.monotonic() + LATE_FILES_S
        while 0 < len(paths := self._folder.observed_steps(restart)) < self._spec.num_gpus:
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        found = {path: seen for path in paths if (seen := _observed(path)) is not None}
        return of_all_ranks([*found.values()]) if self._folder.observed_step(0, restart) in found else None

    def _read_other_logs(self) -> None:
        """Read layout and memory from the other ranks' logs: trainers report them on other ranks than steps."""
        for path in self._folder.rank_logs():
            try:
                with open_plain(path) as stream:
                    head = stream.read(HEAD_BYTES).decode("utf-8", errors="replace")
            except (OSError, ValueError):
                continue
            for line in head.splitlines():
                self._reader.note(line)


def _observed(path: Path) -> ObservedStep | None:
    """One rank's report; None for anything else."""
    try:
        return ObservedStep.from_json(read_json(path))
    except ValueError:
        return None


def _record(number: int, phase: StepPhase, step: TrainerStep) -> StepRecord:
    return StepRecord(
        step=number,
        phase=phase,
        time=utc_text(),
        step_time_s=step.step_time_s,
        fastest_rank_step_time_s=None,
        loss=step.loss,
        grad_norm=step.grad_norm,
        samples=step.samples,
    )
