"""Parlay's initial weights and tokens in place of pretrain_gpt.py's own, by the spec in the attempt's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from trials.train.data import SyntheticData
from trials.train.model.initial_weights import WeightSource
from trials.trial import TrialSpec

CPU = torch.device("cpu")


def give_weights_and_tokens() -> None:
    spec = TrialSpec.from_json(json.loads(Path("spec.json").read_text()))
    _give_weights(spec)
    _give_tokens(spec)
    _decay_all_weights()


def _give_weights(spec: TrialSpec) -> None:
    from megatron.core.models.gpt.gpt_model import GPTModel

    from trials.train.engines.megatron_core_engine import part_of_this_rank
    from trials.train.engines.named_weights import MEGATRON_CORE_WEIGHTS, NamedWeights

    build = GPTModel.__init__

    def build_with_weights(chunk: Any, *arguments: Any, **options: Any) -> None:
        build(chunk, *arguments, **options)
        part = part_of_this_rank(spec.model, chunk.decoder.layers[0].layer_number - 1)
        NamedWeights(MEGATRON_CORE_WEIGHTS, spec.model, WeightSource(spec.seed, CPU), part).set(chunk)

    GPTModel.__init__ = build_with_weights


def _give_tokens(spec: TrialSpec) -> None:
    from megatron.core.datasets.gpt_dataset import GPTDataset

    length = spec.model.seq_length
    data = SyntheticData(spec.model, spec.layout, 0, CPU)
    mask = torch.ones(1, length, length, dtype=torch.bool).triu(1)

    def sample(dataset: Any, index: int | None) -> dict[str, torch.Tensor]:
        batch = data.samples(torch.tensor([index or 0]))
        return {
            "tokens": batch.ids[0],
            "labels": batch.targets[0],
            "attention_mask": mask,
            "loss_mask": torch.ones(length),
            "position_ids": torch.arange(length),
        }

    GPTDataset.__getitem__ = sample


def _decay_all_weights() -> None:
    """Decay biases and norms too, as the plain GPT does."""
    from megatron.training import training

    training.get_standard_config_overrides = lambda config: {}
