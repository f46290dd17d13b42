"""Tensor-parallel layers after Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3), and the parallel loss.

Shapes: B sequences, S positions, H hidden, V vocabulary, T tensor ranks. With one tensor rank they are plain layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trials.train.reductions import Reduction, reduce_in_place


@dataclass(frozen=True)
class TensorRanks:
    """This rank's place among the ranks that share every layer; `group` is None when there is only one."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def slice_of(self, full: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's equal share of `full` along `dim`."""
        return full.chunk(self.size, dim)[self.rank]


def is_sharded(parameter: nn.Parameter) -> bool:
    return parameter.is_sharded  # type: ignore[attr-defined]


def sharded(values: torch.Tensor, ranks: TensorRanks) -> nn.Parameter:
    """A parameter of which every tensor rank holds another part."""
    return _parameter(values, is_sharded=ranks.size > 1)


def replicated(values: torch.Tensor) -> nn.Parameter:
    """A parameter that every tensor rank holds whole, with identical gradients."""
    return _parameter(values, is_sharded=False)


def _parameter(values: torch.Tensor, is_sharded: bool) -> nn.Parameter:
    parameter = nn.Parameter(values.clone(memory_format=torch.contiguous_format))
    parameter.is_sharded = is_sharded  # type: ignore[attr-defined]
    return parameter


class ColumnParallelLinear(nn.Module):
    """x (B, S, in) -> (B, S, out / T): each rank computes its own output features.

    `blocks` > 1: the output is that many equal parts side by side (query, key, value), each dealt on its own.
    """

    def __init__(self, ranks: TensorRanks, full_weight: torch.Tensor, blocks: int = 1):
        super().__init__()
        self.ranks = ranks
        features_out, features_in = full_weight.shape
        by_block = full_weight.view(blocks, features_out // blocks, features_in)
        self.weight = sharded(ranks.slice_of(by_block, 1).reshape(-1, features_in), ranks)
        self.bias = sharded(full_weight.new_zeros(features_out // ranks.size), ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = enter_sharded(x, self.ranks, Reduction.COLUMN_PARALLEL_INPUT_GRADIENT)
        return F.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """x (B, S, in / T) -> (B, S, out): each rank multiplies its own input features, then all are summed."""

    def __init__(self, ranks: TensorRanks, full_weight: torch.Tensor):
        super().__init__()
        self.ranks = ranks
        self.weight = sharded(ranks.slice_of(full_weight, 1), ranks)
        self.bias = replicated(full_weight.new_zeros(full_weight.shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        partial = F.linear(x, self.weight)
        return leave_sharded(partial, self.ranks, Reduction.ROW_PARALLEL_OUTPUT) + self.bias


class VocabParallelEmbedding(nn.Module):
    """ids (B, S) -> (B, S, H): each rank looks up the tokens of its own V / T rows, then all are summed."""

    def __init__(self, ranks: TensorRanks, full_weight: torch.Tensor):
        super().__init__()
        self.ranks = ranks
        self.weight = sharded(ranks.slice_of(full_weight, 0), ranks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.ranks.group is None:
            return F.embedding(ids, self.weight)
        local, is_mine = _local_ids(ids, self.weight.shape[0], self.ranks.rank)
        partial = F.embedding(local, self.weight) * is_mine.unsqueeze(-1)
        return leave_sharded(partial, self.ranks, Reduction.EMBEDDING_OUTPUT)


def vocab_parallel_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, ranks: TensorRanks) -> torch.Tensor:
    """Mean loss of logits (B, S, V / T) against token ids (B, S); the whole logits are on no rank at any time."""
    flat_logits, flat_targets = logits.float().flatten(0, 1), targets.flatten()
    if ranks.group is None:
        return F.cross_entropy(flat_logits, flat_targets)
    return _VocabParallelCrossEntropy.apply(flat_logits, flat_targets, ranks)


def enter_sharded(x: torch.Tensor, ranks: TensorRanks, reduction: Reduction) -> torch.Tensor:
    """x as it is; on the way back its gradient is summed, since each rank used x for its own part."""
    return x if ranks.group is None else _EnterSharded.apply(x, ranks, reduction)


def leave_sharded(partial: torch.Tensor, ranks: TensorRanks, reduction: Reduction) -> torch.Tensor:
    """The sum over the tensor ranks; on the way back each gets the whole gradient."""
    return partial if ranks.group is None else _LeaveSharded.apply(partial, ranks, reduction)


class _EnterSharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ranks, reduction):
        ctx.ranks, ctx.reduction = ranks, reduction
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        reduce_in_place(ctx.reduction, gradient, ctx.ranks.group)
        return gradient, None, None


class _LeaveSharded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial, ranks, reduction):
        total = partial.contiguous().clone()
        reduce_in_place(reduction, total, ranks.group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class _VocabParallelCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, ranks):
        largest = logits.amax(-1)
        reduce_in_place(Reduction.LARGEST_LOGIT, largest, ranks.group)
        shifted = logits - largest.unsqueeze(-1)
        local, is_mine = _local_ids(targets, logits.shape[-1], ranks.rank)
        target = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1) * is_mine
        reduce_in_place(Reduction.TARGET_LOGIT, target, ranks.group)
        probabilities = shifted.exp_()
        total = probabilities.sum(-1)
        reduce_in_place(Reduction.EXPONENTIALS, total, ranks.group)
        probabilities.div_(total.unsqueeze(-1))
        ctx.save_for_backward(probabilities, local, is_mine)
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx, gradient):
        probabilities, local, is_mine = ctx.saved_tensors
        rows = torch.arange(len(local), device=local.device)
        logits_gradient = probabilities.clone()
        logits_gradient[rows, local] -= is_mine.to(probabilities.dtype)
        return logits_gradient.mul_(gradient / len(local)), None, None


def _local_ids(ids: torch.Tensor, rows: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids counted from this rank's first row, 0 where another rank owns them, and a mask of those it owns."""
    local = ids - rank * rows
    is_mine = (local >= 0) & (local < rows)
    return local.masked_fill(~is_mine, 0), is_mine
