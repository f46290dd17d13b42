"""DeepSpeed engine: PipelineModule for stages, the plain engine without; ZeRO 0 to 3; our own layers inside.

Written for DeepSpeed 0.19.8, several of whose defaults give wrong results; each guard names its case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe.topology import ProcessTopology
from deepspeed.utils import safe_set_full_fp32_param
from torch import nn

from search_spaces.layouts.layout import Layout
from trials.train.data import Batch
from trials.train.engines.deepspeed_patches import fast_initialize, group_timeouts, init_deepspeed
from trials.train.engines.engine import Engine, GroupSizes, StepResult, TrainingConfig
from trials.train.engines.gradients import clip_gradients, sum_partial
from trials.train.engines.optimizer import build_adamw
from trials.train.model.chunk import ChunkExecution, ModelChunk
from trials.train.parallel.collectives import Reduction, reduce_in_place
from trials.train.parallel.process_groups import World, group_size
from trials.train.parallel.tensor_parallel import (
    TensorParallelRanks,
    has_partial_gradient,
    vocab_parallel_cross_entropy,
)
from trials.trainers.common.deepspeed_config import ds_config

AXES = {"tp": "model", "dp": "data", "pp": "pipe"}
"""DeepSpeed's names of the axes of a rank order."""

MicroBatch = tuple[torch.Tensor, torch.Tensor]
"""Token ids, and the ids that follow them."""


def build_deepspeed_engine(training: TrainingConfig, world: World) -> Engine:
    init_deepspeed(training.device)
    with group_timeouts():
        return _PlainEngine(training, world) if world.stages is None else _PipelineEngine(training, world)


class _DeepSpeedEngine(Engine):
    """Common part of plain and pipeline engine: the wrapped engine, the sums over tensor-parallel ranks and stages that
    DeepSpeed leaves to the model, and the gradient norm, which ZeRO 0 does not report."""

    def __init__(self, training: TrainingConfig, world: World, module: nn.Module, mpu: Any):
        self._training = training
        self._world = world
        self._chunk = local_chunk(module)
        self.chunks = (self._chunk,)
        _mark_parameters(self._chunk)
        optimizer = build_adamw(self._chunk.parameters(), training.optimizer)
        self._clipped_norm: torch.Tensor | None = None
        config = _configuration(training)
        if config["zero_optimization"]["stage"] == 0:
            optimizer.register_step_pre_hook(self._clip)
        with fast_initialize(training.layout):
            self._engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=config, mpu=mpu, dist_init_required=False
            )
        if training.dtype != torch.float32:
            _set_exact_masters(self._chunk, training, world)
        self._sum_before_data_ranks()

    def parameter_counts(self) -> tuple[int, int]:
        counted = list(self._chunk.counted_parameters())
        return sum(map(_local_elements, counted)), sum(map(self._updated_elements, counted))

    def expert_tokens(self) -> dict[int, torch.Tensor]:
        return self._chunk.expert_tokens()

    def group_sizes(self) -> GroupSizes:
        pipeline = None if self._world.stages is None else self._engine.mpu.get_pipe_parallel_group()
        data = self._engine.seq_data_parallel_group
        tensor = group_size(self._world.tensor)
        return GroupSizes(tensor, group_size(pipeline), group_size(data), expert_tensor_parallel=tensor)

    def _set_micro_batches(self, micro_batches: int) -> None:
        """Set the number of micro-batches, by which DeepSpeed divides the gradients."""
        layout = self._training.layout
        samples = micro_batches * layout.micro_batch_size * layout.data_parallel
        if samples != self._engine.train_batch_size():
            self._engine.set_train_batch_size(samples)

    def _grad_norm(self) -> torch.Tensor:
        if self._clipped_norm is not None:
            return self._clipped_norm
        return torch.as_tensor(self._engine.get_global_grad_norm())

    def _clip(self, *_: Any) -> None:
        """Clip before ZeRO 0's update, since DeepSpeed's clipping counts only the first stage, and tied weights
        twice."""
        max_norm = self._training.optimizer.max_grad_norm
        self._clipped_norm = clip_gradients(self._chunk, max_norm, self._world)

    def _updated_elements(self, parameter: Any) -> int:
        """Number of the parameter's elements that this rank's optimizer updates."""
        if not hasattr(parameter, "_hp_mapping"):  # ZeRO 0 updates whole parameters, ZeRO 3 the part it holds
            return _local_elements(parameter)
        fragment = parameter._hp_mapping
        return 0 if fragment is None else fragment.lp_fragment_address.numel

    def _sum_before_data_ranks(self) -> None:
        """Sum over tensor-parallel ranks and tied stages before DeepSpeed averages over the data-parallel ranks."""
        layout = self._training.layout
        split = [parameter for parameter in self._chunk.parameters() if has_partial_gradient(parameter)]
        if layout.zero_stage >= 2 or layout.overlap_comm:
            # Each gradient is reduced over the data-parallel ranks during the backward pass.
            for parameter in split:
                parameter.register_hook(partial(_summed_over_tensor_ranks, ranks=self._world.tensor_ranks))
            return
        for name in ("allreduce_gradients", "_bf16_reduce_grads"):
            if (reduce := getattr(self._engine, name, None)) is not None:
                setattr(self._engine, name, partial(self._reduce, split, reduce))

    def _reduce(self, split: Sequence[nn.Parameter], reduce: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        if self._engine.is_gradient_accumulation_boundary():
            self._sum_tied_gradients()
            sum_partial([_gradient(parameter) for parameter in split], self._world.tensor)
        reduce(*args, **kwargs)

    def _sum_tied_gradients(self) -> None:
        """Sum the halves of the token table's gradient on first and last stage, so that both have all of it."""
        tied = self._chunk.tied_weight
        if tied is not None and self._world.ends is not None:
            reduce_in_place(Reduction.TIED_GRADIENT, _gradient(tied), self._world.ends)


class _PlainEngine(_DeepSpeedEngine):
    """Engine of one stage: DeepSpeed's, with our tensor parallelism passed to it as Megatron's `mpu`."""

    def __init__(self, training: TrainingConfig, world: World):
        axes = _ModelParallelUnit(world)
        prepare = _part_preparer(training, axes)
        model, plan, ranks, weights, execution = training.chunk_arguments(0, world)
        chunk = ModelChunk(model, plan, ranks, weights, execution, on_part=prepare)
        prepare(chunk)
        super().__init__(training, world, chunk, axes)

    def train_step(self, batch: Batch) -> StepResult:
        micro_batches = _micro_batches(batch, self._training.layout)
        self._set_micro_batches(len(micro_batches))
        self._chunk.begin_step(batch.documents_of(len(micro_batches)))
        total = torch.zeros((), device=self._training.device)
        for number, (ids, targets) in enumerate(micro_batches, start=1):
            self._engine.set_gradient_accumulation_boundary(number == len(micro_batches))
            loss = self._chunk.loss(self._engine(ids), targets)
            self._engine.backward(loss)
            self._engine.step()
            total += loss.detach()
        return StepResult(total / len(micro_batches), self._grad_norm())


class _PipelineEngine(_DeepSpeedEngine):
    """Engine of several stages: DeepSpeed's 1F1B over a PipelineModule with one layer per stage, so that stages may be
    uneven."""

    def __init__(self, training: TrainingConfig, world: World):
        super().__init__(training, world, _StagePipeline(training, world), mpu=None)

    def train_step(self, batch: Batch) -> StepResult:
        micro_batches = _micro_batches(batch, self._training.layout)
        self._set_micro_batches(len(micro_batches))
        self._chunk.begin_step(batch.documents_of(len(micro_batches)))
        loss = self._engine.train_batch(data_iter=iter(micro_batches))
        return StepResult(loss.detach(), self._grad_norm())


class _StagePipeline(PipelineModule):
    """PipelineModule that builds only the local stage, without named tied weights.

    DeepSpeed looks for the gradients of tied weights where, with fp16, or bf16 and offload, there are none, and
    silently skips them; `_sum_tied_gradients` does not.
    """

    def __init__(self, training: TrainingConfig, world: World):
        prepare = _part_preparer(training, axes=None)
        stages = range(training.layout.pipeline_parallel)
        super().__init__(
            layers=[LayerSpec(ModelChunk, *training.chunk_arguments(s, world), prepare) for s in stages],
            topology=_topology(training.layout),
            loss_fn=partial(vocab_parallel_cross_entropy, ranks=world.tensor_ranks),
            partition_method="uniform",
        )


class _ModelParallelUnit:
    """Megatron's `mpu` interface over our groups; a rank alone on an axis gets a group of one."""

    def __init__(self, world: World):
        alone = dist.new_group([dist.get_rank()], use_local_synchronization=True)
        self._tensor = alone if world.tensor is None else world.tensor
        self._data = alone if world.data is None else world.data

    def get_model_parallel_group(self) -> dist.ProcessGroup:
        return self._tensor

    def get_model_parallel_rank(self) -> int:
        return dist.get_rank(self._tensor)

    def get_model_parallel_world_size(self) -> int:
        return dist.get_world_size(self._tensor)

    def get_data_parallel_group(self) -> dist.ProcessGroup:
        return self._data

    def get_data_parallel_rank(self) -> int:
        return dist.get_rank(self._data)

    def get_data_parallel_world_size(self) -> int:
        return dist.get_world_size(self._data)


def local_chunk(module: nn.Module) -> ModelChunk:
    return next(part for part in module.modules() if isinstance(part, ModelChunk))


def _topology(layout: Layout) -> ProcessTopology:
    """The rank order as DeepSpeed's topology, which names the outermost axis first."""
    sizes = layout.mesh.sizes
    dims = [dim for dim in reversed([*sizes]) if dim in AXES]
    return ProcessTopology([AXES[dim] for dim in dims], [sizes[dim] for dim in dims])


def _part_preparer(training: TrainingConfig, axes: _ModelParallelUnit | None) -> Callable[[nn.Module], None]:
    """Function applied to each part of the model once built, so that no rank ever holds all of it in fp32, nor with
    ZeRO 3 all of it at all."""
    weight_type = training.dtype
    shards_weights, config = training.layout.zero_stage == 3, _configuration(training)

    def prepare(part: nn.Module) -> None:
        for parameter in part.parameters():
            parameter.data = parameter.data.to(weight_type)
        if shards_weights and axes is not None:
            group = axes.get_data_parallel_group()
            deepspeed.zero.Init(module=part, data_parallel_group=group, config_dict_or_path=config, mpu=axes)

    return prepare


def _mark_parameters(chunk: ModelChunk) -> None:
    """Mark the parameters that this rank counts in ZeRO's norm, which by itself misses all shards but the first
    tensor-parallel rank's, and counts the token table of a tied pipeline twice."""
    counted = {id(parameter) for parameter in chunk.counted_parameters()}
    for parameter in chunk.parameters():
        parameter.model_parallel = id(parameter) in counted  # type: ignore[attr-defined]
        parameter.ds_pipe_replicated = id(parameter) not in counted  # type: ignore[attr-defined]


def _set_exact_masters(chunk: ModelChunk, training: TrainingConfig, world: World) -> None:
    """Replace DeepSpeed's fp32 masters, which start as rounded weights, by the exact ones, drawn again part by part, so
    that every layout starts from the same weights."""
    blocks = iter(chunk.blocks)

    def give_block(exact: nn.Module) -> None:
        for parameter, values in zip(next(blocks).parameters(), exact.parameters(), strict=True):
            safe_set_full_fp32_param(parameter, values.data)
            values.data = values.data.new_empty(0)

    model, plan, ranks, weights, _ = training.chunk_arguments(world.coordinates["pp"], world)
    exact = ModelChunk(model, plan, ranks, weights, ChunkExecution(), on_part=give_block)
    for name, values in exact.named_parameters():
        if not name.startswith("blocks."):
            safe_set_full_fp32_param(chunk.get_parameter(name), values.data)


def _local_elements(parameter: Any) -> int:
    """Number of the parameter's elements on this rank; ZeRO 3 pads the last rank's part."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter.numel()
    part = parameter.ds_tensor.numel()
    before = part * dist.get_rank(parameter.ds_process_group)
    return min(part, max(0, parameter.ds_numel - before))


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    """The accumulated gradient where DeepSpeed keeps it: in fp32 with 16-bit weights in its bf16 optimizer or ZeRO,
    else in `grad`. RuntimeError where the parameter has none."""
    for name in ("_hp_grad", "grad_accum", "grad"):
        if (gradient := getattr(parameter, name, None)) is not None:
            return gradient
    raise RuntimeError(f"a parameter of shape {tuple(parameter.shape)} got no gradient")


def _summed_over_tensor_ranks(gradient: torch.Tensor, ranks: TensorParallelRanks) -> torch.Tensor:
    total = gradient.clone(memory_format=torch.contiguous_format)
    reduce_in_place(Reduction.PARTIAL_GRADIENT, total, ranks.group)
    return total


def _configuration(training: TrainingConfig) -> dict[str, Any]:
    """DeepSpeed configuration as the recipe exports it, except for what we do ourselves: clipping with ZeRO 0 (`_clip`)
    and recomputation. DeepSpeed's own reports are off."""
    layout = replace(training.layout, activation_checkpointing="none")
    config = ds_config(layout, training.optimizer.max_grad_norm, training.model)
    if layout.precision == "fp16":
        config["fp16"] |= {"initial_scale_power": training.optimizer.loss_scale_power}
    is_ours = config["zero_optimization"]["stage"] == 0
    return config | {"steps_per_print": 10**9} | ({"gradient_clipping": 0.0} if is_ours else {})


def _micro_batches(batch: Batch, layout: Layout) -> list[MicroBatch]:
    size = layout.micro_batch_size
    return list(zip(batch.ids.split(size), batch.targets.split(size), strict=True))
