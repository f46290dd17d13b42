"""Training data of a data-parallel rank: synthetic sequences, or those of a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.data.indexed_dataset import IndexedDataset, open_dataset
from trials.ranks.failures import TrialFailure, data_failures
from trials.train.model.attention import Documents
from trials.trial import FailureReason, TrialSpec

# Multipliers of Knuth's multiplicative hash (The Art of Computer Programming, vol. 3, 6.4) and of a variant.
_HASHES = (2654435761, 2246822519)
_PATTERNS = 16
_TOKEN_TYPES = {"H": torch.uint16, "i": torch.int32}
"""Type of a token by Python's code of the array that holds it."""
_Sequences = tuple[torch.Tensor, tuple[tuple[int, ...], ...] | None]


@dataclass(frozen=True)
class Batch:
    """One step of one data-parallel rank: ids and the ids that follow them, both (accumulation x micro batch, S).

    Micro-batches are consecutive along the first dimension. `documents` are the lengths of each sequence's documents,
    where a token attends only to its own; None where it attends to its whole sequence.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    documents: tuple[tuple[int, ...], ...] | None = None

    def first(self, samples: int) -> Batch:
        """The first sequences."""
        documents = None if self.documents is None else self.documents[:samples]
        return Batch(self.ids[:samples], self.targets[:samples], documents)

    @property
    def squared_lengths(self) -> float | None:
        """Sum of the documents' squared lengths; None without documents."""
        if self.documents is None:
            return None
        return sum(length**2 for lengths in self.documents for length in lengths)

    def documents_of(self, micro_batches: int) -> list[Documents] | None:
        """The documents of each of so many micro-batches; None without documents."""
        if self.documents is None:
            return None
        size = len(self.documents) // micro_batches
        parts = (self.documents[first : first + size] for first in range(0, len(self.documents), size))
        return [Documents.of(part, self.ids.device) for part in parts]


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
        return self.samples(sample_indices(self.layout, self.data_rank, step))

    def samples(self, indices: torch.Tensor) -> Batch:
        """The sequences of these sample indices, in order; of several documents for a model with documents."""
        documents = None
        if self.model.document_length is not None:
            documents = tuple(_synthetic_lengths(index, self.model.seq_length) for index in indices.tolist())
        indices = indices.to(self.device)
        stride, start = (((indices * m) % 2**32) // 2**16 % _PATTERNS for m in _HASHES)
        positions = torch.arange(self.model.seq_length + 1, device=self.device)
        tokens = (start.unsqueeze(1) + positions * (1 + stride).unsqueeze(1)) % self.model.vocab_size
        return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), documents)


def _synthetic_lengths(index: int, seq_length: int) -> tuple[int, ...]:
    """Lengths of up to four documents that a sequence is cut into, different for each sample."""
    cuts = sorted({0, seq_length, *(index * stride % seq_length for stride in (5, 11, 17))})
    return tuple(after - before for before, after in pairwise(cuts))


class DatasetData(TrainingData):
    """Sequences of a dataset, read by a thread that prefetches one step.

    The result of `begin` raises TrialFailure where a file is truncated, or has ids outside of the model's vocabulary.
    """

    def __init__(
        self, dataset: IndexedDataset, model: ModelShape, layout: Layout, data_rank: int, device: torch.device
    ):
        self._dataset = dataset
        self._vocab_size = model.vocab_size
        self._seq_length = model.seq_length
        self._is_by_document = model.document_length is not None
        self._layout = layout
        self._data_rank = data_rank
        self._device = device
        # Pinning memory uses the thread's current device; with none set it would open the first one.
        choose_device = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._reader = ThreadPoolExecutor(1, "data", choose_device)
        self._prefetched: tuple[int, Future[_Sequences]] | None = None

    def begin(self, step: int) -> Callable[[], Batch]:
        if self._prefetched is None or self._prefetched[0] != step:
            self._prefetched = self._start_reading(step)
        return partial(self._take, *self._prefetched)

    def _take(self, step: int, reading: Future[_Sequences]) -> Batch:
        ids, documents = reading.result()
        self._prefetched = self._start_reading(step + 1)
        ids = ids.to(self._device, non_blocking=True)
        return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), documents)

    def _start_reading(self, step: int) -> tuple[int, Future[_Sequences]]:
        return step, self._reader.submit(self._read, step)

    def _read(self, step: int) -> _Sequences:
        """(samples, S + 1) ids, and the documents where attention is by document; runs in the reader's thread."""
        indices = sample_indices(self._layout, self._data_rank, step).tolist()
        documents = None
        with data_failures():
            samples = self._dataset.samples(indices, self._seq_length)
            if self._is_by_document:
                documents = tuple(self._dataset.document_lengths(indices, self._seq_length))
        packed = torch.frombuffer(samples, dtype=_TOKEN_TYPES[samples.typecode])
        ids = packed.to(torch.int64).view(len(indices), self._seq_length + 1)
        for token in (int(ids.min()), int(ids.max())):
            if not 0 <= token < self._vocab_size:
                raise TrialFailure(
                    FailureReason.SCRIPT_ERROR,
                    f"token {token} in step {step + 1}: model.vocab_size is {self._vocab_size}, at most"
                    f" {self._vocab_size - 1} can be looked up; raise it to that of the dataset's tokenizer",
                )
        return ids.pin_memory() if self._device.type == "cuda" else ids, documents


def training_data(spec: TrialSpec, data_rank: int, device: torch.device) -> TrainingData:
    """The data that `trainer.data` of the search file asks for."""
    if not spec.reads_tokens:
        return SyntheticData(spec.model, spec.layout, data_rank, device)
    with data_failures():
        dataset = open_dataset(spec.trainer["data"], spec.model)
    return DatasetData(dataset, spec.model, spec.layout, data_rank, device)


def sample_indices(layout: Layout, data_rank: int, step: int) -> torch.Tensor:
    """Global sample indices of a data-parallel rank's step: micro-batch j of rank d is the (j x ranks + d)-th of the
    step."""
    size = layout.micro_batch_size
    micro_batches = torch.arange(layout.grad_accum_steps) * layout.data_parallel + data_rank
    first = step * layout.global_batch_size + micro_batches * size
    return (first.unsqueeze(1) + torch.arange(size)).flatten()
