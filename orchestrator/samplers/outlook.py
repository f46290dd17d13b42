"""What the models of memory and time expect of every candidate, after what the search has seen so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.samplers.base import Told
from search_spaces.calibration import KNOWN_SPEED, UNKNOWN_SPEED, MemoryBelief, MemoryEvidence, TimeBelief
from search_spaces.cluster import Cluster
from search_spaces.layout import Layout
from search_spaces.layout_table import LayoutTable
from search_spaces.memory import stage_memory
from search_spaces.model_shape import ModelShape
from search_spaces.step_time import StepTerms
from trials.ranking import Objective, sharers_of
from trials.trial import FailureReason

CONTEXT_GIB = 1.5
"""What the driver, the kernels and the communication libraries take of a device beside what the allocator counts."""


@dataclass(frozen=True)
class Task:
    """What is searched for: the training, the machine, and what is to be large.

    `memory_limit_gib` is the limit a rank is given, None for the device's own.
    """

    model: ModelShape
    cluster: Cluster
    objective: Objective = Objective.TOKENS_PER_SEC
    memory_limit_gib: float | None = None

    @property
    def capacity_gib(self) -> float | None:
        """GiB that a rank's own allocations may take; None where nobody knows."""
        accelerator = self.cluster.accelerator
        usable = accelerator.usable_memory_gib or accelerator.memory_gib
        room = None if usable is None else usable - CONTEXT_GIB
        limits = [gib for gib in (room, self.memory_limit_gib) if gib is not None]
        return min(limits, default=None)

    @property
    def speed_is_known(self) -> bool:
        """Whether anybody knows how fast the accelerator is; else seconds are ratios only."""
        return bool(self.cluster.accelerator.peak_flops)

    @property
    def speed_log_sd(self) -> float:
        """How uncertain it is how fast the machine is as a whole."""
        return KNOWN_SPEED if self.speed_is_known else UNKNOWN_SPEED


@dataclass(frozen=True)
class Outlook:
    """Of each candidate: mean and standard deviation of the logarithm of its objective, and the chance that it fits.

    `unexplained` is how far measurements are from the model, a standard deviation of the logarithm."""

    log_value: np.ndarray
    deviation: np.ndarray
    fits: np.ndarray
    unexplained: float


def worth(log_value: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """By what candidates are ordered before any was measured: one that may not fit has to be faster to be worth its
    trial. `log_value` is the logarithm of the objective, `fits` the chance to fit."""
    return log_value + 0.5 * np.log(fits + 1e-9)


class Expectations:
    """Estimates of a closed set of candidates, and what a history makes of them."""

    def __init__(self, task: Task, candidates: Sequence[Layout], seed: int):
        self._task, self._seed = task, seed
        self.table = LayoutTable.of(candidates)
        self._rows = {layout.key: row for row, layout in enumerate(candidates)}
        self._terms = StepTerms.of(task.model, task.cluster, self.table)
        self._memory_gib = stage_memory(task.model, self.table).peak
        tokens = [layout.global_batch_size * task.model.seq_length for layout in candidates]
        sharers = [sharers_of(layout, task.objective) for layout in candidates]
        self._log_work = np.log(tokens) - np.log(sharers)

    def row(self, layout: Layout) -> int | None:
        """Which candidate it is; None for a layout from elsewhere."""
        return self._rows.get(layout.key)

    def after(self, history: Sequence[Told]) -> Outlook:
        """What is expected now. Layouts from elsewhere teach nothing here."""
        known = [(self._rows[told.layout.key], told) for told in history if told.layout.key in self._rows]
        measured = [(row, told.speed) for row, told in known if told.speed is not None]
        rows = np.array([row for row, _ in measured], dtype=int)
        seconds = np.exp(self._log_work[rows] - np.log([speed for _, speed in measured]))
        belief = TimeBelief(self._terms.take(rows), seconds, self._seed, self._task.speed_log_sd)
        log_seconds, deviation = belief.predict(self._terms)
        evidence = [found for row, told in known if (found := self._evidence(row, told)) is not None]
        memory = MemoryBelief(self._task.capacity_gib, evidence)
        return Outlook(
            log_value=self._log_work - log_seconds,
            deviation=np.hypot(deviation, _OWN_SHARE * belief.error),
            unexplained=belief.error,
            fits=memory.fits(self._memory_gib),
        )

    def _evidence(self, row: int, told: Told) -> MemoryEvidence | None:
        estimated = float(self._memory_gib[row])
        if told.speed is not None:
            return MemoryEvidence(estimated, ran=True, peak_gib=told.peak_memory_gib)
        if told.reason is FailureReason.GPU_OOM:
            return MemoryEvidence(estimated, ran=False)
        return None


_OWN_SHARE = 0.7
"""Of the model's error, what is a layout's own and not its neighbours', too."""
