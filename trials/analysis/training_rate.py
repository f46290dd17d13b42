"""Tokens a day of a training with a measured layout, less the stalls of its checkpoints. Pure.

A trial writes no checkpoints. What they cost the training is stated by the user (`trainer.checkpoint`).
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.engines import ENGINE_PROFILES
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape

_SECONDS_PER_DAY = 86400
_BYTES_PER_GB = 1e9


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints of a training: every `every_steps` steps, or after every `every_s` seconds of training; each stalls
    it for `stall_s` seconds, or until its bytes are written at `write_gb_per_s`. One of each pair is given."""

    every_steps: int | None = None
    every_s: float | None = None
    stall_s: float | None = None
    write_gb_per_s: float | None = None

    def stall_of(self, model: ModelShape, layout: Layout) -> float:
        """Seconds for which one checkpoint stalls the training."""
        if self.stall_s is not None:
            return self.stall_s
        assert self.write_gb_per_s is not None, "one of them is given"
        return checkpoint_bytes(model, layout) / _BYTES_PER_GB / self.write_gb_per_s

    def interval_of(self, step_time_s: float) -> float:
        """Seconds of training between two checkpoints."""
        if self.every_s is not None:
            return self.every_s
        assert self.every_steps is not None, "one of them is given"
        return self.every_steps * step_time_s


@dataclass(frozen=True)
class TrainingRate:
    """Rate of a training over days."""

    tokens_per_day: float
    """Without the time of stalls, where checkpoints are stated (`trainer.checkpoint`)."""
    stalled_share: float | None = None
    """Fraction of the time in which checkpoints stall the training; null where none are stated."""
    checkpoint_stall_s: float | None = None
    """Time for which one checkpoint stalls it."""

    @property
    def tokens_per_sec(self) -> float:
        """Mean throughput, stalls included."""
        return self.tokens_per_day / _SECONDS_PER_DAY


def training_rate(
    tokens_per_sec: float, model: ModelShape, layout: Layout, checkpoints: Checkpoints | None = None
) -> TrainingRate:
    """The rate of a training whose steps have this throughput, with these checkpoints; None: none were stated.

    Of a table of layouts, with their throughputs and stalls as columns, those of all.
    """
    if checkpoints is None:
        return TrainingRate(tokens_per_sec * _SECONDS_PER_DAY)
    stall_s = checkpoints.stall_of(model, layout)
    step_time_s = layout.global_batch_size * model.seq_length / tokens_per_sec
    share = stall_s / (checkpoints.interval_of(step_time_s) + stall_s)
    return TrainingRate(tokens_per_sec * _SECONDS_PER_DAY * (1 - share), share, stall_s)


def checkpoint_bytes(model: ModelShape, layout: Layout) -> float:
    """Bytes of a checkpoint from which a training continues: every weight that trains and its optimizer states, once,
    as the engine holds them. Gradients are not saved."""
    state = ENGINE_PROFILES[layout.engine].state_bytes(layout.precision)
    return model.trainable_parameters * (state.weights + state.optimizer_with(layout.moment_dtype))
