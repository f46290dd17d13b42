"""Synthetic training data: sequences a model can learn, and which data rank trains which of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch

from search_spaces.layout import Layout
from search_spaces.model_shape import ModelShape

# Multipliers of Knuth's multiplicative hash (The Art of Computer Programming, vol. 3, 6.4) and of a relative.
_HASHES = (2654435761, 2246822519)
_PATTERNS = 16


@dataclass(frozen=True)
class Batch:
    """One step of one data rank: ids and the ids that follow them, both (accumulation x micro batch, S).

    Micro-batches lie one after another along the first dimension.
    """

    ids: torch.Tensor
    targets: torch.Tensor


class TrainingData(ABC):
    """The batches of one data rank, asked for step after step, from one thread.

    A sample depends on its index alone, and step k trains the samples k G to (k + 1) G - 1 for the global batch G,
    whatever the layout.
    """

    @abstractmethod
    def begin(self, step: int) -> Callable[[], Batch]:
        """Called before the clock starts; what is called inside of it gives the batch of `step`, counted from 0."""


@dataclass(frozen=True)
class SyntheticData(TrainingData):
    """Sequences that count up by a fixed stride, different for each sample: the loss falls within a few steps.

    They are ready before the clock starts.
    """

    model: ModelShape
    layout: Layout
    data_rank: int
    device: torch.device

    def begin(self, step: int) -> Callable[[], Batch]:
        batch = self.batch(step)
        return lambda: batch

    def batch(self, step: int) -> Batch:
        """The samples of this data rank in optimizer step `step`, counted from 0."""
        return self.samples(sample_indices(self.layout, self.data_rank, step).to(self.device))

    def samples(self, indices: torch.Tensor) -> Batch:
        """The sequences of these sample indices, in order."""
        stride, start = (((indices * m) % 2**32) // 2**16 % _PATTERNS for m in _HASHES)
        positions = torch.arange(self.model.seq_length + 1, device=self.device)
        tokens = (start.unsqueeze(1) + positions * (1 + stride).unsqueeze(1)) % self.model.vocab_size
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


def sample_indices(layout: Layout, data_rank: int, step: int) -> torch.Tensor:
    """Global sample indices of a data rank's step: micro-batch j of rank d is the (j x ranks + d)-th of the step."""
    size = layout.micro_batch_size
    micro_batches = torch.arange(layout.grad_accum_steps) * layout.data_parallel + data_rank
    first = step * layout.global_batch_size + micro_batches * size
    return (first.unsqueeze(1) + torch.arange(size)).flatten()
