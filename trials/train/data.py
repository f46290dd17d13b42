"""Training data of a data-parallel rank: synthetic sequences, or those of a token file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.data.token_file import TokenFile
from trials.ranks.failures import TrialFailure, data_failures
from trials.trial import FailureReason, TrialSpec

# Multipliers of Knuth's multiplicative hash (The Art of Computer Programming, vol. 3, 6.4) and of a variant.
_HASHES = (2654435761, 2246822519)
_PATTERNS = 16
_TOKEN_TYPES = {2: torch.uint16, 4: torch.uint32}
"""Type of a token by its bytes."""


@dataclass(frozen=True)
class Batch:
    """One step of one data-parallel rank: ids and the ids that follow them, both (accumulation x micro batch, S).

    Micro-batches are consecutive along the first dimension.
    """

    ids: torch.Tensor
    targets: torch.Tensor


class TrainingData(ABC):
    """Batches of one data-parallel rank, one step after another, used from one thread.

    A sample depends on its index alone, and step k trains the samples k G to (k + 1) G - 1 for the global batch G,
    whatever the layout.
    """

    @abstractmethod
    def begin(self, step: int) -> Callable[[], Batch]:
        """Start loading the batch of `step`, counted from 0, before the clock starts; calling the result under the
        clock returns it."""


@dataclass(frozen=True)
class SyntheticData(TrainingData):
    """Sequences that count up by a fixed stride, different for each sample, so that the loss falls within a few steps.

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
        """The samples of this data-parallel rank in optimizer step `step`, counted from 0."""
        return self.samples(sample_indices(self.layout, self.data_rank, step).to(self.device))

    def samples(self, indices: torch.Tensor) -> Batch:
        """The sequences of these sample indices, in order."""
        stride, start = (((indices * m) % 2**32) // 2**16 % _PATTERNS for m in _HASHES)
        positions = torch.arange(self.model.seq_length + 1, device=self.device)
        tokens = (start.unsqueeze(1) + positions * (1 + stride).unsqueeze(1)) % self.model.vocab_size
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


class TokenFileData(TrainingData):
    """Sequences of a token file, read by a thread that prefetches one step.

    The result of `begin` raises TrialFailure where the file is truncated, or has ids outside of its vocabulary.
    """

    def __init__(self, file: TokenFile, seq_length: int, layout: Layout, data_rank: int, device: torch.device):
        self._file = file
        self._seq_length = seq_length
        self._layout = layout
        self._data_rank = data_rank
        self._device = device
        # Pinning memory uses the thread's current device; with none set it would open the first one.
        choose_device = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._reader = ThreadPoolExecutor(1, "data", choose_device)
        self._prefetched: tuple[int, Future[torch.Tensor]] | None = None

    def begin(self, step: int) -> Callable[[], Batch]:
        if self._prefetched is None or self._prefetched[0] != step:
            self._prefetched = self._start_reading(step)
        return partial(self._take, *self._prefetched)

    def _take(self, step: int, reading: Future[torch.Tensor]) -> Batch:
        ids = reading.result()
        self._prefetched = self._start_reading(step + 1)
        ids = ids.to(self._device, non_blocking=True)
        return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())

    def _start_reading(self, step: int) -> tuple[int, Future[torch.Tensor]]:
        return step, self._reader.submit(self._read, step)

    def _read(self, step: int) -> torch.Tensor:
        """(samples, S + 1) ids; runs in the reader's thread."""
        indices = sample_indices(self._layout, self._data_rank, step).tolist()
        with data_failures():
            samples = self._file.samples(indices, self._seq_length)
        packed = torch.frombuffer(samples, dtype=_TOKEN_TYPES[self._file.header.token_bytes])
        ids = packed.to(torch.int64).view(len(indices), self._seq_length + 1)
        if (largest := int(ids.max())) >= self._file.header.vocab_size:
            raise TrialFailure(
                FailureReason.SCRIPT_ERROR,
                f"token {largest} in step {step + 1}: the vocabulary of the token file has "
                f"{self._file.header.vocab_size} ids; the file is damaged",
            )
        return ids.pin_memory() if self._device.type == "cuda" else ids


def training_data(spec: TrialSpec, data_rank: int, device: torch.device) -> TrainingData:
    """The data that `trainer.data` of the search file asks for."""
    if not spec.reads_tokens:
        return SyntheticData(spec.model, spec.layout, data_rank, device)
    with data_failures():
        file = TokenFile(Path(spec.trainer["data"]["path"]))
    return TokenFileData(file, spec.model.seq_length, spec.layout, data_rank, device)


def sample_indices(layout: Layout, data_rank: int, step: int) -> torch.Tensor:
    """Global sample indices of a data-parallel rank's step: micro-batch j of rank d is the (j x ranks + d)-th of the
    step."""
    size = layout.micro_batch_size
    micro_batches = torch.arange(layout.grad_accum_steps) * layout.data_parallel + data_rank
    first = step * layout.global_batch_size + micro_batches * size
    return (first.unsqueeze(1) + torch.arange(size)).flatten()
