"""Incremental reader of a trainer's log: lines from bytes, steps from lines, and the end of the output.

Pure; standard library only.
"""

from __future__ import annotations

import math
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from trials.files.text import without_escapes
from trials.files.tracebacks import TRACEBACK, first_cause, tracebacks
from trials.trainers.common.log_lines import LONGEST_LINE, PROOF_NAMES, Line, LogFormat, read_line
from trials.trial import TrialSpec

_KEPT_LINES = 400
_KEPT_CHARACTERS = 500
_KEPT_TRACEBACKS = 4


class LineSplitter:
    """Splits bytes into lines as they come. Invalid UTF-8 is replaced; the rest of a line beyond `LONGEST_LINE` bytes
    is dropped. A carriage return also ends a line, for progress bars."""

    def __init__(self) -> None:
        self._unfinished = bytearray()

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are complete now."""
        *whole, rest = re.split(rb"[\r\n]", data)
        for part in whole:
            yield self._line(part)
        self._keep(rest)

    def last(self) -> str:
        """The unfinished last line."""
        return self._line(b"")

    def _line(self, end: bytes) -> str:
        self._keep(end)
        text = self._unfinished.decode("utf-8", errors="replace")
        self._unfinished.clear()
        return text

    def _keep(self, data: bytes) -> None:
        self._unfinished += data[: LONGEST_LINE - len(self._unfinished)]


@dataclass(frozen=True)
class TrainerStep:
    """One step as logged; None where it is not. Memory in GiB, `tflops` of one GPU."""

    iteration: int
    step_time_s: float
    samples: int
    loss: float | None = None
    grad_norm: float | None = None
    tflops: float | None = None
    samples_per_sec: float | None = None
    tokens_per_sec: float | None = None
    has_nan: bool = False


class StepReader:
    """The steps of one log, and its reports on layout and memory.

    An iteration counts once, and never after a later one. Iterations that the trainer skipped (the loss scale was too
    large) updated nothing and are not steps.
    """

    def __init__(self, log_format: LogFormat, spec: TrialSpec):
        self.proof: dict[str, float] = {}
        self.peak_memory_gib: float | None = None
        self.peak_memory_allocated_gib: float | None = None
        self.skipped = 0
        self._format = log_format
        self._spec = spec
        self._last_iteration = 0
        self._first_samples: float | None = None

    def feed(self, text: str) -> TrainerStep | None:
        """The step that this line reports; None for any other line."""
        line = read_line(text, self._format)
        self._note(line)
        iteration = _whole(line.values.get("iteration"), self._last_iteration + 1)
        step_time_s = self._step_time_s(line)
        if not line.is_step or step_time_s is None or iteration <= self._last_iteration:
            return None
        self._last_iteration = iteration
        if line.values.get("skipped"):
            self.skipped += 1
            return None
        return self._step(iteration, step_time_s, line)

    def note(self, text: str) -> None:
        """Take layout and memory, but no steps, from another rank's line."""
        line = read_line(text, self._format)
        if not line.is_step:
            self._note(line)

    def _step_time_s(self, line: Line) -> float | None:
        """The step time as logged, else from the rate of samples or tokens; None for an impossible time."""
        samples, values = self._spec.global_batch_size, line.values
        found = values.get("step_time_s")
        for name, amount in (("samples_per_sec", samples), ("tokens_per_sec", samples * self._spec.model.seq_length)):
            if found is None and (rate := values.get(name)):
                found = amount / rate
        return found if found is not None and 0 < found < math.inf else None

    def _step(self, iteration: int, step_time_s: float, line: Line) -> TrainerStep:
        values = line.values
        loss, grad_norm = values.get("loss"), values.get("grad_norm")
        not_finite = [value for value in (loss, grad_norm) if value is not None and not math.isfinite(value)]
        per_gpu = values.get("tokens_per_sec_per_gpu")
        return TrainerStep(
            iteration=iteration,
            step_time_s=step_time_s,
            samples=_whole(values.get("global_batch_size"), self._spec.global_batch_size),
            loss=loss,
            grad_norm=grad_norm,
            tflops=values.get("tflops"),
            samples_per_sec=values.get("samples_per_sec"),
            tokens_per_sec=values.get("tokens_per_sec", None if per_gpu is None else per_gpu * self._spec.num_gpus),
            has_nan=bool(values.get("nan")) or bool(not_finite),
        )

    def _note(self, line: Line) -> None:
        self.proof |= {name: line.values[name] for name in PROOF_NAMES if name in line.values}
        if line.is_step and "global_batch_size" in line.values:
            self.proof["global_batch_size"] = line.values["global_batch_size"]
        for name in ("memory_gib", "memory_allocated_gib"):
            if name in line.values:
                known = getattr(self, f"peak_{name}")
                setattr(self, f"peak_{name}", max(known or 0.0, line.values[name]))


def _whole(value: float | None, otherwise: int) -> int:
    """A count as logged; `otherwise` without one."""
    return int(value) if value is not None and math.isfinite(value) else otherwise


class StepLikeLines:
    """Lines that look like reports of steps, whatever their format: equal but for their numbers, one of which follows
    the word step, iteration or loss."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @property
    def most_alike(self) -> int:
        """Number of the most frequent ones."""
        return max(self._counts.values(), default=0)

    def feed(self, text: str) -> None:
        text = without_escapes(text[:_KEPT_CHARACTERS])
        if _STEP_LIKE.search(text):
            form = " ".join(_NUMBER.sub("0", text).split())
            if form in self._counts or len(self._counts) < _KEPT_LINES:
                self._counts[form] += 1


_STEP_LIKE = re.compile(r"(?<![a-z])(?:step|iter|iteration|loss)s?(?![a-z])[^a-z\d]{0,16}\d", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")


class OutputTail:
    """The end of a process's output, and its first tracebacks however much output follows.

    One thread feeds it; any may read the tail meanwhile.
    """

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()
        self._tracebacks: list[str] = []
        self._current: list[str] = []
        self._memory_line: str | None = None

    def feed(self, text: str) -> None:
        line = _RANK_PREFIX.sub("", without_escapes(text[:_KEPT_CHARACTERS]))
        with self._lock:
            self._lines.append(line)
        self._collect(line)
        if self._memory_line is None and _OUT_OF_MEMORY.search(line):
            self._memory_line = line

    @property
    def ran_out_of_memory(self) -> bool:
        """True if it reported running out of memory; a process that goes on afterwards has not failed."""
        return self._memory_line is not None

    @property
    def port_was_taken(self) -> bool:
        return any(_PORT_TAKEN.search(line) for line in self._lines)

    def cause(self) -> str | None:
        """The first traceback that is not about a lost peer, else the line about memory, else None."""
        cause = first_cause([*self._tracebacks, "\n".join(self._current)])
        if self._memory_line is None or (cause and _OUT_OF_MEMORY.search(cause)):
            return cause
        return self._memory_line if cause is None else f"{self._memory_line}\n{cause}"

    def tail(self, lines: int) -> str:
        with self._lock:
            return "\n".join(list(self._lines)[-lines:])

    def _collect(self, line: str) -> None:
        """Keep the traceback that this line belongs to."""
        if not self._current and not line.startswith(TRACEBACK):
            return
        self._current.append(line)
        is_last = len(self._current) > 1 and line and not line[0].isspace()
        if is_last or len(self._current) > _KEPT_LINES:
            if len(self._tracebacks) < _KEPT_TRACEBACKS:
                self._tracebacks += tracebacks("\n".join(self._current))
            self._current = []


_RANK_PREFIX = re.compile(r"^\[(?:rank|default|Rank )?\d+\]: ?")
"""Prefixes that torch, torchrun and srun put before a rank's output."""
_OUT_OF_MEMORY = re.compile(
    r"(?:CUDA|HIP) out of memory|OutOfMemoryError|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: can't allocate memory|std::bad_alloc|^MemoryError\b"
)
_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
