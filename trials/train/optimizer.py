"""AdamW and its settings: the same in both engines, so that engines differ in speed only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Optimisation:
    """Settings of the optimizer; they change what is learnt, not how long a step takes."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


def build_adamw(parameters: Iterable[nn.Parameter], settings: Optimisation, device: torch.device) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=device.type == "cuda",
    )
