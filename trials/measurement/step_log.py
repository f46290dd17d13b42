"""One line of JSON a training step: the record and its writer. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from search_spaces.decoding import JsonObject
from trials.files.folders import json_line
from trials.trial import LowerStrEnum


class StepPhase(LowerStrEnum):
    WARMUP = "warmup"
    MEASURED = "measured"


@dataclass(frozen=True)
class StepRecord(JsonObject):
    """One optimizer step over all ranks.

    `step` counts from 1; `time` is the end of the step, UTC RFC 3339. `step_time_s` is the slowest rank's. `samples`
    are the sequences of this step, counted by the data-parallel ranks. Device memory after the step is the largest over
    the ranks (None on CPU): allocated to tensors, reserved by the allocator, used of the device by anything. Host
    memory is the largest sum of resident memory over the ranks of one node. `grad_norm` is None for a step of fp16
    whose gradients overflowed: nothing was updated, the loss scale was halved. `data_wait_s` is the time spent waiting
    for the batch, the longest over the ranks. `gpu_utilization`, a fraction, is the mean over the ranks that were
    sampled after this step, None where none was. `document_length` is that of `ModelShape`, counted in this step, None
    where attention is not by document. Values that a third-party trainer's log does not show are None.
    """

    step: int
    phase: StepPhase
    time: str
    step_time_s: float
    fastest_rank_step_time_s: float | None
    loss: float | None
    grad_norm: float | None
    samples: int
    memory_allocated_gib: float | None = None
    memory_reserved_gib: float | None = None
    memory_device_gib: float | None = None
    host_memory_gib: float | None = None
    data_wait_s: float | None = None
    gpu_utilization: float | None = None
    document_length: float | None = None


class MetricsWriter:
    """Appends records to a metrics file, each flushed at once as one whole line. Used by one thread of rank 0."""

    def __init__(self, path: Path):
        self._stream = path.open("ab")

    def write(self, record: StepRecord) -> None:
        """ValueError for not-a-number: such a step is not a measurement."""
        self._stream.write(json_line(record))
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()
