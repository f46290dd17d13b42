"""megatron-core 0.16.1 on a CPU: its local layers, over gloo."""

from __future__ import annotations

from typing import Any

import torch
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


def _name_missing_kernel() -> None:
    from megatron.core.transformer.moe import moe_utils

    vars(moe_utils).setdefault("te_general_gemm", None)


def _compute_discarded_outputs_without_8_bits() -> None:
    from megatron.core.tensor_parallel import random

    prepare = random.CheckpointWithoutOutput.__init__

    def without_8_bits(self: Any, *arguments: Any, **named: Any) -> None:
        prepare(self, *arguments, **named)
        self.fp8 = False

    random.CheckpointWithoutOutput.__init__ = without_8_bits


def _give_numbers_to_all_to_alls() -> None:
    from megatron.core.transformer.moe import token_dispatcher

    def numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = numbers


def _exchange_unequal_parts() -> None:
    distributed = torch.distributed
    gather, scatter = distributed.all_gather, distributed.reduce_scatter

    def all_gather(parts: list[torch.Tensor], mine: torch.Tensor, group: Any = None, **options: Any) -> Any:
        if _are_equal(parts):
            return gather(parts, mine, group=group, **options)
        parts[distributed.get_rank(group)].copy_(mine)
        for source, part in enumerate(parts):
            distributed.broadcast(part, group=group, group_src=source)
        return None

    def reduce_scatter(mine: torch.Tensor, parts: list[torch.Tensor], group: Any = None, **options: Any) -> Any:
        if _are_equal(parts):
            return scatter(mine, parts, group=group, **options)
        for owner, part in enumerate(parts):
            total = part.clone()
            distributed.reduce(total, group=group, group_dst=owner)
            if owner == distributed.get_rank(group):
                mine.copy_(total)
        return None

    distributed.all_gather = all_gather  # type: ignore[assignment]
    distributed.reduce_scatter = reduce_scatter  # type: ignore[assignment]


def _are_equal(parts: list[torch.Tensor]) -> bool:
    return len({part.shape for part in parts}) == 1


PATCHES = (
    *cuda.PATCHES,
    Patch(
        "sequence_parallel_norm",
        "assert not config.sequence_parallel, of megatron/core/transformer/torch_norm.py: WrappedTorchNorm.__new__()",
        _mark_norms,
    ),
    Patch(
        "router_kernel",
        "te_general_gemm, which megatron/core/transformer/moe/moe_utils.py tests without having imported it",
        _name_missing_kernel,
    ),
    Patch(
        "discarded_outputs",
        "FP8GlobalStateManager of Transformer Engine, which megatron/core/tensor_parallel/random.py:"
        " CheckpointWithoutOutput asks where its fp8 is False, too",
        _compute_discarded_outputs_without_8_bits,
    ),
    Patch(
        "split_sizes",
        "is_cuda of what is to become numbers, of megatron/core/transformer/moe/moe_utils.py:"
        " maybe_move_tensor_to_cpu()",
        _give_numbers_to_all_to_alls,
    ),
    Patch(
        "unequal_parts",
        "all_gather() and reduce_scatter() of unequal parts, of megatron/core/tensor_parallel/mappings.py:"
        " _gather_along_first_dim(); gloo has equal ones alone",
        _exchange_unequal_parts,
    ),
)
