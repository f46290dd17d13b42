"""Torch-native engine: our own tensor parallelism and flat buffers, FSDP2, and torch.distributed.pipelining."""

from __future__ import annotations

import torch

from trials.train.data import Batch
from trials.train.engines.engine import Engine, GroupSizes, StepResult, TrainingConfig
from trials.train.engines.sharding import Sharding
from trials.train.engines.update import Update
from trials.train.model.chunk import ModelChunk
from trials.train.parallel.process_groups import World, group_size


class TorchEngine(Engine):
    chunks: tuple[ModelChunk, ...]

    def __init__(self, training: TrainingConfig, world: World):
        self._training = training
        self._world = world
        self._sharding, self.chunks = _shard_chunks(training, world)
        self._update = Update(
            self._sharding,
            world,
            training.optimizer,
            uses_fp16=training.dtype == torch.float16,
            is_offloaded=training.layout.offload == "optimizer",
        )
        self._pipeline = None
        if world.stages is not None:
            from trials.train.engines.torch_pipeline import Pipeline

            self._pipeline = Pipeline(self.chunks, training, world)

    def train_step(self, batch: Batch) -> StepResult:
        micro_batches = len(batch.ids) // self._training.layout.micro_batch_size
        factor = self._update.loss_scale.value / (micro_batches * self._sharding.loss_divisor)
        self._sharding.begin_step(micro_batches)
        for chunk in self.chunks:
            chunk.begin_step(batch.documents_of(micro_batches))
        run = self._accumulate if self._pipeline is None else self._pipeline.run
        loss = run(batch, micro_batches, factor)
        self._sharding.finish_backward()
        return StepResult(loss, self._update.step())

    def parameter_counts(self) -> tuple[int, int]:
        return self._sharding.held_parameters(), self._sharding.updated_parameters()

    def expert_tokens(self) -> dict[int, torch.Tensor]:
        return {layer: tokens for chunk in self.chunks for layer, tokens in chunk.expert_tokens().items()}

    def group_sizes(self) -> GroupSizes:
        world = self._world
        tensor = group_size(world.tensor)
        return GroupSizes(tensor, group_size(world.stages), group_size(world.data), expert_tensor_parallel=tensor)

    def _accumulate(self, batch: Batch, micro_batches: int, factor: float) -> torch.Tensor:
        """Run the micro-batches one after another through the only chunk; returns their mean loss."""
        (chunk,) = self.chunks
        total = torch.zeros((), device=self._training.device)
        for ids, targets in zip(batch.ids.chunk(micro_batches), batch.targets.chunk(micro_batches), strict=True):
            loss = chunk.loss(chunk(ids), targets)
            (loss * factor).backward()
            total += loss.detach()
        return total / micro_batches


def _shard_chunks(training: TrainingConfig, world: World) -> tuple[Sharding, tuple[ModelChunk, ...]]:
    """The weights of this rank's chunks, sharded by the ZeRO stage, and the chunks."""
    layout = training.layout
    indices = range(world.coordinates["pp"], training.num_chunks, layout.pipeline_parallel)
    if layout.zero_stage >= 2 and world.data is not None:
        from trials.train.engines.fsdp import FsdpSharding

        fsdp = FsdpSharding(training, world, indices)
        return fsdp, fsdp.chunks
    from trials.train.engines.flat_buffers import FlatSharding

    chunks = tuple(ModelChunk(*training.chunk_arguments(index, world)) for index in indices)
    flat = FlatSharding(
        chunks,
        world,
        training.dtype,
        shares_update=layout.zero_stage >= 1,
        overlaps=layout.overlap_comm,
        bucket_mib=layout.bucket_mib,
    )
    return flat, chunks
