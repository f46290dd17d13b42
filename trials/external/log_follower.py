"""Supervision of one rank of a third-party trainer from start to end: output copied, steps followed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from trials.external.child import Child, end_descendants
from trials.external.fingerprint import fingerprint
from trials.external.measurement import LogMeasurement
from trials.files.folders import AttemptFolder, write_text
from trials.files.text import last_line
from trials.measure_rules import MeasureRules
from trials.measurement.step_log import MetricsWriter
from trials.ranks.environment import RankEnvironment, device_number, process_age_s
from trials.ranks.failures import EXCERPT_CHARACTERS, TrialFailure, reason_of_output
from trials.ranks.kernel_oom import count_oom_kills
from trials.ranks.node_sampler import sample_node
from trials.ranks.rendezvous import Address, publish_address, published_address, require_free
from trials.ranks.report import Report
from trials.ranks.startup import StartupPart
from trials.ranks.watchdog import Watchdog, hang_limit_s, silence_reason
from trials.trainers.base import Invocation
from trials.trainers.common.trainer_log import LineSplitter, OutputTail
from trials.trainers.registry import invocation, is_observed, is_timed_by_observer, log_rank_of
from trials.trial import FailureReason, TrialSpec

TICK_S = 0.25
PEER_GRACE_S = 1.5
"""Seconds for which the trainer goes on after the outcome is written: other ranks look for one every tick, and a rank
that sees its peers vanish first would report a failure."""
MAX_COPIED_BYTES = 64 * 2**20
"""Limit of one rank's copied output, so that a verbose trainer does not fill the disk."""
END_MARGIN_S = 2.0
"""Seconds reserved for writing an outcome before the time limit."""

_OBSERVER = Path(__file__).with_name("observer")
_TAIL_LINES = 20
_NOT_THE_TRAINERS = ("PYTHONPATH", "PYTHONSAFEPATH", "PARLAY_PARENT_PID")
"""Variables of our own code, which would hide packages next to the trainer's script."""
_OF_TORCHRUN = "TORCHELASTIC_"
"""Prefix of torchrun's variables: its store is not that of the trainer's ranks."""


def follow(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    """Run this rank's trainer until the trial is measured, by this rank's log or another's.

    TrialFailure when the trainer failed or its log is implausible, InputError for an invalid trainer section,
    TimeoutError when rank 0 publishes no address.
    """
    words = OutputTail()
    TrainerWatchdog(report, env, spec.measure, words).start()
    sample_node(spec, folder, env)
    made = invocation(spec, sys.executable, str(folder.path))
    address = _exchange_address(spec, folder, env, made.files)
    environment = trainer_environment(spec, env, made, address) | observer_variables(spec, folder, env)
    oom_kills = count_oom_kills()
    measurement = None
    if env.rank == log_rank_of(spec):
        writer = MetricsWriter(folder.metrics(env.restart))
        measurement = LogMeasurement(spec, folder, report, fingerprint(spec, env, environment), writer)
        measurement.startup.end_of(StartupPart.RENDEZVOUS)
    child = Child(made.command, folder.path, environment)
    report.enter("build")
    rank = _Rank(spec, report, words, measurement)
    if rank.follow_until_measured(child):
        return
    exit_code = child.exit_code()
    if exit_code != 0 and not (measurement is not None and measurement.is_done):
        steps = 0 if measurement is None else measurement.num_steps
        raise failure_of(exit_code, words, steps, count_oom_kills() - oom_kills)
    if measurement is not None:
        rank.conclude(measurement)


def failure_of(exit_code: int, words: OutputTail, num_steps: int, oom_kills: int) -> TrialFailure:
    """The failure behind a bad exit code. `num_steps` were seen in the log; `oom_kills` is how often the kernel killed
    for memory meanwhile."""
    how = f"the trainer {_describe_exit(exit_code)}"
    cause = words.cause()
    output = (cause or words.tail(_TAIL_LINES))[-EXCERPT_CHARACTERS:]
    # The log does not show a signal; it goes last, where tables look for the cause.
    excerpt = f"{output}\n{how}" if exit_code < 0 and cause is None else f"{how}\n{output}"
    return TrialFailure(_reason(exit_code, words, cause, num_steps, oom_kills), excerpt)


def _reason(exit_code: int, words: OutputTail, cause: str | None, num_steps: int, oom_kills: int) -> FailureReason:
    if words.ran_out_of_memory:
        return FailureReason.GPU_OOM
    if exit_code == -signal.SIGKILL:
        return FailureReason.HOST_OOM if oom_kills > 0 else FailureReason.NODE_FAILURE
    if words.port_was_taken and num_steps == 0:
        return FailureReason.LAUNCH_FAILURE
    return reason_of_output(last_line(cause) if cause else words.tail(_TAIL_LINES))


def _describe_exit(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"


def _exchange_address(
    spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, files: Mapping[str, str]
) -> Address:
    """The address of this attempt's ranks. `files` (name to text) are in the folder when it is published."""
    path = folder.rendezvous(env.restart)
    if env.rank > 0:
        return published_address(path)
    for name, text in files.items():
        write_text(folder.path / name, text)
    return publish_address(spec, path, require_free)


def trainer_hang_limit_s(rules: MeasureRules) -> float:
    """Seconds without progress after which a trainer hangs. Its steps are never shortened, so steps of minutes are
    accepted where the time limit leaves room for many."""
    return max(hang_limit_s(rules), rules.time_limit_s / 4)


def trainer_environment(spec: TrialSpec, env: RankEnvironment, made: Invocation, address: Address) -> dict[str, str]:
    """The trainer's variables: the node's without ours, those for torch's `env://`, and the trainer's defaults."""
    ours = {name for name in os.environ if name in _NOT_THE_TRAINERS or name.startswith(_OF_TORCHRUN)}
    kept = {name: value for name, value in os.environ.items() if name not in ours and made.refused.get(name) != value}
    ranks = {
        "RANK": str(env.rank),
        "WORLD_SIZE": str(env.world_size),
        "LOCAL_RANK": str(device_number(env.local_rank, os.environ)),  # trainers use it as their device's index
        "LOCAL_WORLD_SIZE": str(min(spec.gpus_per_node, env.world_size)),
        "MASTER_ADDR": address.host,
        "MASTER_PORT": str(address.port),
        "PYTHONUNBUFFERED": "1",
    }
    return {"OMP_NUM_THREADS": "1", **made.environment, **kept, **ranks}


def observer_variables(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> dict[str, str]:
    """The variables by which the trainer's Python runs the observer; none where that is switched off, or its log shows
    as much."""
    if not is_observed(spec.trainer):
        return {}
    variables = {"PYTHONPATH": str(_OBSERVER), "PARLAY_OBSERVED_STEP": str(folder.observed_step(env.rank, env.restart))}
    is_timed = is_timed_by_observer(spec.trainer) and env.rank == log_rank_of(spec)
    return variables | ({"PARLAY_TIMED_STEPS": "1"} if is_timed else {})


class TrainerWatchdog(Watchdog):
    """Ends a rank as `Watchdog` does, after everything its trainer started."""

    def __init__(self, report: Report, env: RankEnvironment, rules: MeasureRules, words: OutputTail):
        super().__init__(report, env, trainer_hang_limit_s(rules), silence_reason(rules))
        self._words = words

    def _standing(self) -> str:
        """The end of the trainer's output; its stacks are not accessible."""
        return self._words.tail(_TAIL_LINES)

    def _end(self) -> None:
        end_descendants()
        super()._end()


class _Rank:
    """One rank's handling of its trainer's output."""

    def __init__(self, spec: TrialSpec, report: Report, words: OutputTail, measurement: LogMeasurement | None):
        self._rules, self._trainer = spec.measure, spec.trainer
        self._notice_s = PEER_GRACE_S if spec.num_gpus > 1 else 0.0
        self._report = report
        self._words = words
        self._measurement = measurement
        self._splitter = LineSplitter()
        self._copied = 0
        self._reported_at: float | None = None
        self._next_look = 0.0

    def follow_until_measured(self, child: Child) -> bool:
        """Follow the trainer; True if the trial was measured before the trainer ended."""
        for data in child.output(TICK_S):
            self._copy(data)
            for line in self._splitter.feed(data):
                self._take(line)
            if self._reported_at is None:
                self._check_for_end()
            elif time.monotonic() - self._reported_at >= self._notice_s:
                return True
        self._take(self._splitter.last(), is_whole=False)
        return self._reported_at is not None

    def conclude(self, measurement: LogMeasurement) -> None:
        """Report the outcome of a trainer that ended by itself; TrialFailure without enough steps."""
        if measurement.num_steps == measurement.num_skipped == 0:
            raise self._unread("the trainer's log ends")
        measurement.require_enough(FailureReason.RESULT_INVALID, "until the trainer ended by itself")
        self._report.write(measurement.outcome())

    def _check_for_end(self) -> None:
        """Check for an end: the measurement is done, time is up, or another rank has an outcome."""
        measurement = self._measurement
        if measurement is None:
            self._check_for_outcome()
            return
        if not measurement.is_done:
            if process_age_s() + END_MARGIN_S < self._rules.time_limit_s:
                return
            measurement.end_for_time()
        measurement.require_enough(FailureReason.TIME_LIMIT, "when the time limit came near")
        self._report.write(measurement.outcome())
        self._reported_at = time.monotonic()

    def _check_for_outcome(self) -> None:
        """Check for another rank's outcome, not for every chunk of output, since all nodes may share the folder."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + TICK_S
        self._report.progress()  # progress shows in the log that reports the steps
        if self._report.has_outcome():
            self._reported_at = now - self._notice_s

    def _take(self, line: str, is_whole: bool = True) -> None:
        """Take in a line. An unfinished line reports no step: half a number is a wrong number."""
        self._words.feed(line)
        if is_whole and self._measurement is not None and self._reported_at is None:
            self._measurement.feed(line)
            if self._measurement.has_unread_steps:
                raise self._unread("the trainer's log goes on")

    def _unread(self, how: str) -> TrialFailure:
        end = "no line of its log reports a step: none matches trainer.patterns"
        if is_timed_by_observer(self._trainer):
            end = "no optimizer of torch.optim stepped twice after backward passes: give trainer.patterns"
        return TrialFailure(FailureReason.STEPS_UNREAD, f"{how}\n{self._words.tail(_TAIL_LINES)}\n{end}")

    def _copy(self, data: bytes) -> None:
        """Copy output into the rank's log, up to a limit."""
        room = MAX_COPIED_BYTES - self._copied
        self._copied += len(data)
        sys.stdout.buffer.write(data[:room] if room > 0 else b"")
        if 0 < room < len(data):
            sys.stdout.buffer.write(b"\n[log truncated at 64 MiB]\n")
        sys.stdout.buffer.flush()
