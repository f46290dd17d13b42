"""AdamW of the engines torch and DeepSpeed, and its settings, the same in all engines, which differ only in speed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer settings; they change what is learnt, not the step time. fp16's loss scale starts at
    2**`loss_scale_power`."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    loss_scale_power: int = 16


class EagerAdamW(torch.optim.AdamW):
    """torch.optim.AdamW without the decorators for torch.compile, which import the whole compiler, a second per
    rank."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)


def build_adamw(parameters: Iterable[nn.Parameter], settings: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW, on a GPU and in host memory, where one pass over the weights takes a tenth of the time of many."""
    return EagerAdamW(
        parameters,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )
