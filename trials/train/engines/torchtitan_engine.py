"""Engine torchtitan: torchtitan's own trainer with a configuration for the layout.

Written for torchtitan 0.3.0. The steps are those of torchtitan/trainer.py `Trainer.train`, the configuration
is that of torchtitan/config/configs.py, torchtitan/models/llama3 and torchtitan/models/qwen3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import CompileConfig, DebugConfig
from torchtitan.config import TrainingConfig as TitanTraining
from torchtitan.distributed.pipeline_parallel import _build_pipeline_schedule, pipeline_llm
from torchtitan.models.common.decoder import Decoder
from torchtitan.models.common.moe import MoE, TokenChoiceTopKRouter
from torchtitan.models.llama3.model import Llama3Model
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.qwen3.model import Qwen3Model
from torchtitan.models.qwen3.parallelize import parallelize_qwen3
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.protocols.module import Module
from torchtitan.trainer import Trainer

from search_spaces.routing import Routing
from trials.ranks.failures import TrialFailure
from trials.train.data import Batch
from trials.train.engines.engine import Engine, GroupSizes, StepResult, TrainingConfig
from trials.train.engines.named_weights import TORCHTITAN_WEIGHTS, NamedWeights
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.sharded_weights import ShardCounts
from trials.train.engines.torchtitan_parts import converted, model_config, parallelism, recomputation
from trials.train.model.attention import Documents
from trials.train.model.mlp import forced_choice
from trials.train.parallel.process_groups import World
from trials.trainers.torchtitan.config import is_qwen3
from trials.trainers.torchtitan.trainer import values_of
from trials.trial import FailureReason

MicroBatch = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Token ids and positions, and the ids that follow."""


class TorchtitanChunk(Decoder):
    """Model part of a pipeline chunk, which counts the micro-batches and samples that pass through."""

    micro_batches = 0
    samples = 0
    is_counting = True

    def forward(self, tokens: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if self.is_counting:
            self.micro_batches += 1
            self.samples += tokens.shape[0]
        return super().forward(tokens, *arguments, **options)


class LlamaChunk(TorchtitanChunk, Llama3Model):
    """Chunk of torchtitan's llama3."""

    @dataclass(kw_only=True, slots=True)
    class Config(Llama3Model.Config):
        pass


class QwenChunk(TorchtitanChunk, Qwen3Model):
    """Chunk of torchtitan's qwen3."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        pass


class NoTokenizer(BaseTokenizer):
    """Tokenizer of a trainer that is given ids."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config: Config, **_: Any):
        super().__init__()

    def encode(self, *arguments: Any, **options: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *arguments: Any, **options: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        raise NotImplementedError


class NoDataLoader(BaseDataLoader):
    """Data loader of a trainer whose steps are given their batches."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config: Config, **_: Any):
        pass

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class LastStep(MetricsProcessor):
    """Metrics of the last step, in place of torchtitan's log."""

    loss = grad_norm = float("nan")

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):
        pass

    def should_log(self, step: int) -> bool:
        return True

    def log(self, step: int, global_avg_loss: float, global_max_loss: float, grad_norm: float, **_: Any) -> None:
        self.loss, self.grad_norm = global_avg_loss, grad_norm


class TorchTitanEngine(Engine):
    chunks: tuple[TorchtitanChunk, ...]

    def __init__(self, training: TrainingConfig, world: World):
        self._training = training
        # As torchtitan/distributed/utils.py init_distributed does before the ranks meet.
        torch.autograd.set_multithreading_enabled(False)
        self._trainer = Trainer(trainer_config(training))
        self.chunks = tuple(self._trainer.model_parts)
        if training.model.adapters is not None:  # which draw their own weights
            for chunk in self.chunks:
                NamedWeights(TORCHTITAN_WEIGHTS, training.model, training.weights).set(chunk)
        _force_routing(self.chunks, training.routing)
        self._shards = [ShardCounts(chunk, "layers.", world.tensor_ranks.rank) for chunk in self.chunks]
        self._schedules: dict[int, Any] = {}
        if self._trainer.parallel_dims.pp_enabled:
            self._schedules[training.layout.grad_accum_steps] = self._trainer.pp_schedule
            for stage, chunk in zip(self._stages, self.chunks, strict=True):
                _count_micro_batches_only(stage, chunk)

    def train_step(self, batch: Batch) -> StepResult:
        trainer, size = self._trainer, self._training.layout.micro_batch_size
        # torchtitan takes its loader's tensors, which lie on the host, and copies them to the device itself.
        parts = (part.cpu().split(size) for part in (batch.ids, batch.targets, _positions(batch)))
        micro_batches = [({"input": ids, "positions": at}, targets) for ids, targets, at in zip(*parts, strict=True)]
        self._plan(len(micro_batches))
        trainer.step += 1
        trainer.gc_handler.run(trainer.step)
        try:
            trainer.train_step(iter(micro_batches))
        except RuntimeError as error:
            if not str(error).startswith("Loss is not finite"):
                raise
            raise TrialFailure(FailureReason.RESULT_INVALID, f"{error} The training diverged.") from error
        metrics = trainer.metrics_processor
        has_loss = not trainer.parallel_dims.pp_enabled or trainer.pp_has_last_stage
        return StepResult(torch.tensor(metrics.loss) if has_loss else None, torch.tensor(metrics.grad_norm))

    def parameter_counts(self) -> tuple[int, int]:
        return sum(shards.held for shards in self._shards), sum(shards.trained for shards in self._shards)

    def expert_tokens(self) -> dict[int, torch.Tensor]:
        return {int(layer): _whole(moe.tokens_per_expert_E) for layer, moe in _expert_layers(self.chunks)}

    def group_sizes(self) -> GroupSizes:
        dims = self._trainer.parallel_dims
        meshes = (dims.get_optional_mesh(name) for name in ("tp", "pp", "batch", "ep", "cp"))
        tensor, stages, data, experts, context = (1 if mesh is None else mesh.size() for mesh in meshes)
        # Without expert-parallel ranks the tensor-parallel ones split every expert (models/common/moe_sharding.py).
        split = tensor if experts == 1 else 1
        return GroupSizes(tensor, stages, data, experts, expert_tensor_parallel=split, context_parallel=context)

    @property
    def _stages(self) -> list[Any]:
        """torch's stages of this rank's chunks."""
        schedule = self._trainer.pp_schedule
        return schedule._stages if hasattr(schedule, "_stages") else [schedule._stage]

    def _plan(self, micro_batches: int) -> None:
        """Set the number of micro-batches of the next step."""
        trainer = self._trainer
        if not trainer.parallel_dims.pp_enabled:
            trainer.gradient_accumulation_steps = micro_batches
            return
        if micro_batches not in self._schedules:
            self._schedules[micro_batches] = _build_pipeline_schedule(
                parallelism=trainer.config.parallelism,
                local_batch_size=micro_batches * self._training.layout.micro_batch_size,
                stages=self._stages,
                loss_fn=trainer.loss_fn,
            )
        trainer.num_pipeline_parallel_microbatches = micro_batches
        trainer.pp_schedule = self._schedules[micro_batches]


def _positions(batch: Batch) -> torch.Tensor:
    """Positions of the tokens, from which torchtitan makes its masks: a document begins where they are 0
    (torchtitan/models/common/attention.py, get_document_mask_mod)."""
    if batch.documents is None:
        return torch.arange(batch.ids.shape[1]).expand_as(batch.ids)
    return Documents.of(batch.documents, torch.device("cpu")).positions


def _expert_layers(chunks: Iterable[TorchtitanChunk]) -> Iterator[tuple[str, MoE]]:
    """Layers with experts, by their numbers. Those of llama3 have no such attribute."""
    layers = (layer for chunk in chunks for layer in chunk.layers.items())
    return ((name, layer.moe) for name, layer in layers if getattr(layer, "moe_enabled", False))


def _whole(tokens: torch.Tensor) -> torch.Tensor:
    return (tokens.full_tensor() if isinstance(tokens, DTensor) else tokens).clone()


def _force_routing(chunks: Iterable[TorchtitanChunk], routing: Routing) -> None:
    """Choose experts where torchtitan's `moe_force_load_balance` does (models/common/moe.py
    TokenChoiceTopKRouter.forward). Its own choice is the balanced one, but fails with tensor-parallel ranks."""
    if routing.skew is not None:
        for _, moe in _expert_layers(chunks):
            moe.router._debug_force_load_balance_routing = partial(_forced, moe.router, routing)


def _forced(router: TokenChoiceTopKRouter, routing: Routing, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts of each token (B, L, K), and their scores."""
    batch, length, num_experts = scores.shape
    chosen = forced_choice(routing, batch * length, num_experts, router.top_k, scores.device)
    chosen = chosen.view(batch, length, router.top_k)
    if isinstance(scores, DTensor):  # of the positions of all tensor-parallel ranks
        chosen = distribute_tensor(chosen, scores.device_mesh, scores.placements, src_data_rank=None)
    return chosen, scores.gather(-1, chosen)


def _count_micro_batches_only(stage: Any, chunk: TorchtitanChunk) -> None:
    """Have the chunk leave out the pass by which a new schedule infers the shapes of a stage."""
    forward = stage.forward_one_chunk

    def counted(*arguments: Any, **options: Any) -> Any:
        chunk.is_counting = True
        try:
            return forward(*arguments, **options)
        finally:
            chunk.is_counting = False

    chunk.is_counting = False
    stage.forward_one_chunk = counted


def trainer_config(training: TrainingConfig) -> Trainer.Config:
    """Configuration of the whole trainer, without tokenizer, data loader, checkpoints and validation."""
    return Trainer.Config(
        model_spec=_model_spec(training),
        metrics=LastStep.Config(),
        tokenizer=NoTokenizer.Config(),
        dataloader=NoDataLoader.Config(),
        optimizer=optimizer_config(training.optimizer),
        # A rate without warm-up and decay.
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0),
        checkpoint=CheckpointManager.Config(enable=False),
        validator=Validator.Config(enable=False),
        debug=DebugConfig(seed=0, moe_force_load_balance=training.routing.skew is not None),
        **parts_of(training),
    )


def _model_spec(training: TrainingConfig) -> ModelSpec:
    is_qwen = is_qwen3(training.model)
    return ModelSpec(
        name="qwen3" if is_qwen else "llama3",
        flavor="parlay",
        model=model_with_weights(training, QwenChunk if is_qwen else LlamaChunk),
        parallelize_fn=parallelize_qwen3 if is_qwen else parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=None,
    )


_UNENDING = 10**9
_STEPS_BETWEEN_COLLECTIONS = 10
"""torchtitan collects garbage itself, by default every 50 steps: longer than many a trial, whose host memory would
seem to grow."""


def parts_of(training: TrainingConfig) -> dict[str, Any]:
    """What the layout decides of a Trainer.Config: batch, precision, degrees, recomputation, compilation and loss."""
    values = values_of(training)
    return {
        "training": TitanTraining(
            **values["training"],
            max_norm=training.optimizer.max_grad_norm,
            steps=_UNENDING,
            gc_freq=_STEPS_BETWEEN_COLLECTIONS,
        ),
        "parallelism": parallelism(values),
        "activation_checkpoint": recomputation(values),
        "compile": CompileConfig(**values["compile"]),
        "loss": CrossEntropyLoss.Config(global_vocab_size=training.model.vocab_size),
    }


def optimizer_config(settings: OptimizerConfig) -> OptimizersContainer.Config:
    """AdamW with Parlay's settings for all weights."""
    options = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }
    return OptimizersContainer.Config(
        param_groups=[ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=options)]
    )


def model_with_weights(training: TrainingConfig, kind: type[Decoder]) -> Decoder.Config:
    """llama3 or qwen3 of the model's shape with Parlay's initial weights, as a class of `kind`."""
    values = values_of(training)
    config = model_config(values, kind)
    weights = NamedWeights(TORCHTITAN_WEIGHTS, training.model, training.weights)
    # Each rank draws every matrix whole, and keeps its shard, when the model of this configuration is built.
    for path, part, *_ in config.traverse(Module.Config, recurse=True):
        if names := [name for name in part.param_init or () if weights.has(f"{path}.{name}")]:
            part.param_init = part.param_init | {name: partial(weights.draw, f"{path}.{name}") for name in names}
    return converted(config, values)
