"""Engine accelerate: transformers' model, sharded and stepped by Hugging Face accelerate.

Written for accelerate 1.15 and transformers 5.23. The step is that of accelerate's guide to gradient accumulation
(`Accelerator.accumulate`): gradients of a step's micro-batches are summed on each rank and reduced after the last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator, ParallelismConfig
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin, TorchDynamoPlugin
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from search_spaces.layouts.layout import Layout
from trials.train.data import Batch
from trials.train.engines.engine import Engine, GroupSizes, StepResult, TrainingConfig
from trials.train.engines.named_weights import TRANSFORMERS_WEIGHTS, NamedWeights
from trials.train.engines.optimizer import build_adamw
from trials.train.engines.sharded_weights import ShardCounts, elements
from trials.train.engines.transformers_model import build_model
from trials.train.parallel.process_groups import World
from trials.trainers.accelerate.config import (
    MIXED_PRECISIONS,
    dynamo_settings,
    fsdp_settings,
    is_fsdp,
    parallelism_settings,
)

LAYERS = {"rotary": "model.layers.", "learned": "transformer.h."}
"""Beginning of the names of the layers' parameters."""


class AccelerateEngine(Engine):
    chunks: tuple[Any]

    def __init__(self, training: TrainingConfig, world: World):
        self._training = training
        layout = training.layout
        self._accelerator = _accelerator(layout, training.device)
        model = build_model(training.model, layout.attention_kernel)
        if layout.activation_checkpointing == "full" and not is_fsdp(layout):
            # FSDP's own recomputation is in its plugin; DDP has none.
            model.activation_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
        weights = NamedWeights(TRANSFORMERS_WEIGHTS, training.model, training.weights)
        if training.model.trainable is not None:
            from trials.train.engines.peft_model import freeze_untrained

            freeze_untrained(model, training, weights)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = build_adamw(trained, training.optimizer)
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        _require_class(self._model, layout)
        # Not by unwrap_model, which takes autocast from the model.
        inner = self._model.module if isinstance(self._model, DistributedDataParallel) else self._model
        weights.set(inner)
        self._shards = ShardCounts(inner, LAYERS[training.model.position_embedding])
        _count_passes(inner)
        self.chunks = (inner,)

    def train_step(self, batch: Batch) -> StepResult:
        accelerator, size = self._accelerator, self._training.layout.micro_batch_size
        pairs = list(zip(batch.ids.split(size), batch.targets.split(size), strict=True))
        accelerator.step, accelerator.gradient_accumulation_steps = 0, len(pairs)
        total, norm = torch.zeros((), device=batch.ids.device), None
        for ids, targets in pairs:
            with accelerator.accumulate(self._model):
                loss = self._loss(ids, targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    norm = self._clip()
                self._optimizer.step()
                self._optimizer.zero_grad()
            total += loss.detach()
        assert norm is not None
        return StepResult(total / len(pairs), norm)

    def parameter_counts(self) -> tuple[int, int]:
        updated = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        return self._shards.held, sum(map(elements, updated))

    def group_sizes(self) -> GroupSizes:
        return GroupSizes(1, 1, _data_ranks(self._model))

    def _loss(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean cross entropy (a scalar, fp32). Taken outside of the model, whose outputs FSDP casts to `precision`."""
        logits = self._model(input_ids=ids).logits
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def _clip(self) -> torch.Tensor:
        """Clip the gradients; returns their norm before."""
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self._training.optimizer.max_grad_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


def _accelerator(layout: Layout, device: torch.device) -> Accelerator:
    """A new Accelerator for this layout, the only one of the process from now on."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    allows_tf32 = torch.backends.cuda.matmul.allow_tf32
    with _started_as_accelerate_does(layout, device):
        made = Accelerator(
            # Without FSDP accelerate has a CPU of its own.
            cpu=device.type == "cpu" and not is_fsdp(layout),
            mixed_precision=MIXED_PRECISIONS[layout.precision],
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
            dynamo_plugin=TorchDynamoPlugin(**dynamo_settings(layout)),
            fsdp_plugin=_fsdp_plugin(layout) if is_fsdp(layout) else None,
            parallelism_config=_parallelism(layout),
        )
    # accelerate allows it for compiled fp32, in which no other engine has it.
    torch.backends.cuda.matmul.allow_tf32 = allows_tf32
    if made.num_processes != layout.num_gpus:  # each of them would train alone
        raise RuntimeError(f"accelerate found {made.num_processes} ranks of {layout.num_gpus}")
    return made


def _fsdp_plugin(layout: Layout) -> FullyShardedDataParallelPlugin:
    """FSDP2 of the configuration that a recipe exports."""
    return FullyShardedDataParallelPlugin(
        **fsdp_settings(layout), auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
    )


def _parallelism(layout: Layout) -> ParallelismConfig | None:
    """Replicas beside shards; without them FSDP shards over all ranks."""
    return ParallelismConfig(**parallelism_settings(layout)) if layout.data_parallel_replicas > 1 else None


@contextmanager
def _started_as_accelerate_does(layout: Layout, device: torch.device) -> Iterator[None]:
    """Environment in which accelerate finds the ranks as after `accelerate launch`.

    A single process has no local rank, which would make it a group. Several have the address at which they met, of
    which accelerate asks only whether there is one, and on a GPU their device's number as local rank, which DDP takes
    for it.
    """
    changed: dict[str, str | None] = {"LOCAL_RANK": None}
    if layout.num_gpus > 1:
        on_gpu = {} if device.index is None else {"LOCAL_RANK": str(device.index)}
        changed = {"MASTER_ADDR": os.environ.get("MASTER_ADDR", "met"), **on_gpu}
    before = {name: os.environ.get(name) for name in changed}
    _set(changed)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _require_class(model: nn.Module, layout: Layout) -> None:
    """RuntimeError unless FSDP or DDP trains, as the layout says: on its CPU accelerate leaves FSDP out unasked."""
    copied = DistributedDataParallel if layout.num_gpus > 1 else nn.Module
    if not isinstance(model, wanted := FSDPModule if is_fsdp(layout) else copied):
        raise RuntimeError(f"accelerate trains a {type(model).__name__}, the layout asks for {wanted.__name__}")


def _data_ranks(model: nn.Module) -> int:
    """Ranks over which gradients are reduced, by the groups of the prepared model."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group.size()
    first = next(model.parameters())
    return first.device_mesh.size() if isinstance(first, DTensor) else 1


def _count_passes(model: Any) -> None:
    """Have a model count its micro-batches and samples."""
    model.micro_batches = model.samples = 0

    def count(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        module.micro_batches += 1
        module.samples += len(options["input_ids"])

    model.register_forward_pre_hook(count, with_kwargs=True)
