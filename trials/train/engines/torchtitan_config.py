"""Configuration of torchtitan's trainer for a layout.

Written for torchtitan 0.3.0: torchtitan/config/configs.py, torchtitan/models/llama3 and torchtitan/models/qwen3.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.config import CompileConfig
from torchtitan.config import TrainingConfig as TitanTraining
from torchtitan.models.common.decoder import Decoder
from torchtitan.protocols.module import Module

from trials.train.engines.engine import TrainingConfig
from trials.train.engines.named_weights import TORCHTITAN_WEIGHTS, NamedWeights
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.torchtitan_parts import converted, model_config, parallelism, recomputation
from trials.trainers.torchtitan.trainer import values_of

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


def constant_rate() -> LRSchedulersContainer.Config:
    """Learning rate without warm-up and decay."""
    return LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)


def model_with_weights(training: TrainingConfig, kind: type[Decoder]) -> Decoder.Config:
    """llama3 or qwen3 of the model's shape with Parlay's initial weights, as a class of `kind`."""
    values = values_of(training)
    config = model_config(values, kind)
    weights = NamedWeights(TORCHTITAN_WEIGHTS, training.model, training.weights)
    # Each rank draws every matrix whole, and keeps its shard, when the model of this configuration is built.
    for path, part, *_ in config.traverse(Module.Config, recurse=True):
        names = [name for name in part.param_init or () if weights.has(f"{path}.{name}")]
        part.param_init = (part.param_init or {}) | {name: partial(weights.draw, f"{path}.{name}") for name in names}
    return converted(config, values)
