"""megatron-core 0.16.1 on a CPU: its local layers, over gloo."""

from __future__ import annotations

from typing import Any

from torch import nn

from trials.train.cpu_device import cuda
from trials.train.cpu_device.patch import Patch, apply_all


def emulate_device() -> None:
    """Apply all patches, before a model is built. RuntimeError where there is a GPU."""
    apply_all(PATCHES)


def _marked_norm(config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> nn.Module:
    """Layer norm or RMS norm of torch, whose weights are marked as those of Apex and Transformer Engine are."""
    kind = nn.RMSNorm if config.normalization == "RMSNorm" else nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _mark_norms() -> None:
    from megatron.core.transformer import torch_norm

    torch_norm.WrappedTorchNorm.__new__ = staticmethod(lambda cls, *values, **named: _marked_norm(*values, **named))


PATCHES = (
    *cuda.PATCHES,
    Patch(
        "sequence_parallel_norm",
        "assert not config.sequence_parallel, of megatron/core/transformer/torch_norm.py: WrappedTorchNorm.__new__()",
        _mark_norms,
    ),
)
