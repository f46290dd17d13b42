"""Pipeline schedules by torch.distributed.pipelining: GPipe, 1F1B and interleaved 1F1B over this rank's chunks.

Imported only where there is a pipeline: torch's pipelining imports the whole compiler, a second or two a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from trials.train.data import Batch
from trials.train.engines.engine import TrainingConfig
from trials.train.model.chunk import ModelChunk
from trials.train.parallel.process_groups import World


class Pipeline:
    """Runs micro-batches through all stages. A schedule is built for each requested number of micro-batches."""

    def __init__(self, chunks: Sequence[ModelChunk], training: TrainingConfig, world: World):
        self._chunks = chunks
        self._training = training
        self._world = world
        self._schedules: dict[int, Any] = {}
        self._factor = 1.0
        assert world.stages is not None
        # NCCL creates a group's communicator at its first use, which waits for all of its ranks. Without this, that is
        # in the middle of a step, since torch begins with sends and receives between pairs of stages.
        dist.all_reduce(torch.zeros(1, device=training.device), group=world.stages)

    def run(self, batch: Batch, micro_batches: int, factor: float) -> torch.Tensor | None:
        """Forward and backward; gradients are those of the micro-batches' summed loss times `factor`.

        Returns their mean loss on the last stage, None elsewhere.
        """
        self._factor = factor
        # Otherwise the last stage keeps the logits of all micro-batches and concatenates them at the end.
        step = partial(self._schedule(micro_batches).step, return_outputs=False)
        inputs = (batch.ids,) if self._chunks[0].embedding is not None else ()
        if self._chunks[-1].head is None:
            step(*inputs)
            return None
        losses: list[torch.Tensor] = []
        step(*inputs, target=batch.targets, losses=losses)
        return torch.stack([loss.detach() for loss in losses]).mean() / factor

    def _schedule(self, micro_batches: int) -> Any:
        if micro_batches not in self._schedules:
            self._schedules[micro_batches] = self._build(micro_batches)
        return self._schedules[micro_batches]

    def _build(self, micro_batches: int) -> Any:
        name = self._training.layout.pipeline_schedule
        parts = [self._part(index, chunk) for index, chunk in enumerate(self._chunks)]
        # Gradients are scaled through the loss, since torch scales only `grad`, and they may accumulate elsewhere.
        options: dict[str, Any] = {"loss_fn": self._scaled_loss, "scale_grads": False}
        if name == "interleaved_1f1b":
            return ScheduleInterleaved1F1B(parts, micro_batches, **options)
        kind = ScheduleGPipe if name == "gpipe" else Schedule1F1B
        return kind(parts[0], micro_batches, **options)

    def _scaled_loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self._chunks[-1].loss(logits, targets) * self._factor

    def _part(self, index: int, chunk: ModelChunk) -> Any:
        inputs, outputs = _shapes(chunk, self._training)
        return PipelineStage(
            chunk,
            index * self._training.layout.pipeline_parallel + self._world.coordinates["pp"],
            self._training.num_chunks,
            self._training.device,
            # With both given torch does not run the chunk to infer them, which would count as a micro-batch.
            input_args=inputs,
            output_args=outputs,
            group=self._world.stages,
        )


def _shapes(chunk: ModelChunk, training: TrainingConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """Meta tensors of one micro-batch before and after this chunk."""
    model, sequences, ranks = training.model, training.layout.micro_batch_size, chunk.ranks
    ids = torch.empty((sequences, model.seq_length), dtype=torch.long, device="meta")
    positions = model.seq_length // ranks.size if ranks.splits_sequence else model.seq_length
    between = partial(torch.empty, dtype=training.dtype, device="meta", requires_grad=True)
    hidden = between((sequences, positions, model.hidden_size))
    logits = between((*ids.shape, model.vocab_size // ranks.size))
    return (
        ids if chunk.embedding is not None else hidden,
        hidden if chunk.head is None else logits,
    )
