"""Tensor-parallel layers after Megatron-LM (Shoeybi et al., arXiv 1909.08053, section 3), and the parallel loss.

With sequence parallelism (Korthikanti et al., arXiv 2205.05198, section 4.2.2) activations between tensor-parallel
regions are split along the sequence over the same ranks. Shapes: B sequences, S positions, H hidden, V vocabulary, T
tensor-parallel ranks, S' = S / T with sequence parallelism, else S. With one tensor-parallel rank they are plain
layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trials.train.parallel.collectives import Reduction, gather_sequence, reduce_in_place, scatter_sequence


@dataclass(frozen=True)
class TensorParallelRanks:
    """This rank's index among the ranks that split every layer; `group` is None when there is only one."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    splits_sequence: bool = False

    def slice_of(self, full: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's equal share of `full` along `dim`."""
        return full.chunk(self.size, dim)[self.rank]

    def slice_of_parts(self, full: torch.Tensor, parts: Sequence[int], dim: int) -> torch.Tensor:
        """This rank's share of each of the parts of these sizes that are concatenated along `dim`."""
        return torch.cat([self.slice_of(part, dim) for part in full.split(list(parts), dim)], dim)

    def sequence_slice_of(self, full: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a sequence between tensor-parallel regions: its share, or all."""
        return self.slice_of(full, dim) if self.splits_sequence else full


def is_sharded(parameter: nn.Parameter) -> bool:
    return parameter.is_sharded  # type: ignore[attr-defined]


def has_partial_gradient(parameter: nn.Parameter) -> bool:
    """True if each tensor-parallel rank has the gradient of its own positions or heads only, so that the gradients have
    to be summed."""
    return parameter.has_partial_gradient  # type: ignore[attr-defined]


def sharded(values: torch.Tensor, ranks: TensorParallelRanks) -> nn.Parameter:
    """A parameter of which every tensor-parallel rank holds a different part."""
    return _parameter(values, is_sharded=ranks.size > 1, has_partial_gradient=False)


def replicated(values: torch.Tensor, ranks: TensorParallelRanks) -> nn.Parameter:
    """A parameter that every tensor-parallel rank holds whole and applies to its own positions."""
    return _parameter(values, is_sharded=False, has_partial_gradient=ranks.splits_sequence)


def shared_by_heads(values: torch.Tensor, ranks: TensorParallelRanks) -> nn.Parameter:
    """A parameter that every tensor-parallel rank holds whole and applies to its own heads."""
    return _parameter(values, is_sharded=False, has_partial_gradient=ranks.size > 1)


def _parameter(values: torch.Tensor, is_sharded: bool, has_partial_gradient: bool) -> nn.Parameter:
    parameter = nn.Parameter(values.clone(memory_format=torch.contiguous_format))
    parameter.is_sharded = is_sharded  # type: ignore[attr-defined]
    parameter.has_partial_gradient = has_partial_gradient  # type: ignore[attr-defined]
    return parameter


class ColumnParallelLinear(nn.Module):
    """x (B, S', in) -> (B, S, out / T): each rank computes its own output features.

    `parts`: sizes of the concatenated outputs (query, key and value, or gate and value), each split on its own.
    """

    def __init__(self, ranks: TensorParallelRanks, full_weight: torch.Tensor, parts: Sequence[int], has_bias: bool):
        super().__init__()
        self.ranks = ranks
        mine = ranks.slice_of_parts(full_weight, parts, 0)
        self.weight = sharded(mine, ranks)
        self.bias = sharded(full_weight.new_zeros(len(mine)), ranks) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return column_parallel(x, self.weight, self.bias, self.ranks, Reduction.COLUMN_PARALLEL_INPUT_GRADIENT)


class RowParallelLinear(nn.Module):
    """x (B, S, in / T) -> (B, S', out): each rank multiplies its own input features, then all are summed."""

    def __init__(self, ranks: TensorParallelRanks, full_weight: torch.Tensor, has_bias: bool):
        super().__init__()
        self.ranks = ranks
        self.weight = sharded(ranks.slice_of(full_weight, 1), ranks)
        self.bias = replicated(full_weight.new_zeros(full_weight.shape[0]), ranks) if has_bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.ranks.group is None:
            return F.linear(x, self.weight, self.bias)
        total = reduce_partial(F.linear(x, self.weight), self.ranks, Reduction.ROW_PARALLEL_OUTPUT)
        return total if self.bias is None else total + self.bias


class VocabParallelEmbedding(nn.Module):
    """ids (B, S) -> (B, S', H): each rank looks up the tokens of its own V / T rows, then all are summed."""

    def __init__(self, ranks: TensorParallelRanks, full_weight: torch.Tensor):
        super().__init__()
        self.ranks = ranks
        self.weight = sharded(ranks.slice_of(full_weight, 0), ranks)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.ranks.group is None:
            return F.embedding(ids, self.weight)
        local, is_mine = _local_ids(ids, self.weight.shape[0], self.ranks.rank)
        partial = F.embedding(local, self.weight) * is_mine.unsqueeze(-1)
        return reduce_partial(partial, self.ranks, Reduction.EMBEDDING_OUTPUT)


def column_parallel(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ranks: TensorParallelRanks, reduction: Reduction
) -> torch.Tensor:
    """x (B, S', in) times this rank's rows of a weight -> (B, S, out / T).

    `reduction` names the sum of the input's gradient over the ranks, each of which used the input for its own features.
    """
    if ranks.group is None:
        return F.linear(x, weight, bias)
    if ranks.splits_sequence:
        return _SequenceParallelLinear.apply(x, weight, bias, ranks, reduction)
    return F.linear(_CopyToTensorRegion.apply(x, ranks, reduction), weight, bias)


def enter_tensor_region(x: torch.Tensor, ranks: TensorParallelRanks, reduction: Reduction) -> torch.Tensor:
    """x (B, S', H) -> all positions (B, S, H) on each rank; `reduction` is the sum of the gradient over the ranks."""
    if ranks.group is None:
        return x
    enter = _GatherToTensorRegion if ranks.splits_sequence else _CopyToTensorRegion
    return enter.apply(x, ranks, reduction)


def reduce_partial(partial: torch.Tensor, ranks: TensorParallelRanks, reduction: Reduction) -> torch.Tensor:
    """Each rank's part (B, S, H) of a sum over the tensor-parallel ranks -> the sum (B, S', H)."""
    if ranks.group is None:
        return partial
    leave = _ReduceScatterToSequenceRegion if ranks.splits_sequence else _ReduceFromTensorRegion
    return leave.apply(partial, ranks, reduction)


def vocab_parallel_cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ranks: TensorParallelRanks
) -> torch.Tensor:
    """Mean loss of logits (B, S, V / T) against token ids (B, S); no rank ever holds the whole logits."""
    flat_logits, flat_targets = logits.float().flatten(0, 1), targets.flatten()
    if ranks.group is None:
        return F.cross_entropy(flat_logits, flat_targets)
    return _VocabParallelCrossEntropy.apply(flat_logits, flat_targets, ranks)


class _CopyToTensorRegion(torch.autograd.Function):
    """Identity; the backward pass sums the gradient over the tensor-parallel ranks."""

    @staticmethod
    def forward(ctx, x, ranks, reduction):
        ctx.ranks, ctx.reduction = ranks, reduction
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        reduce_in_place(ctx.reduction, gradient, ctx.ranks.group)
        return gradient, None, None


class _GatherToTensorRegion(torch.autograd.Function):
    """All ranks' positions; the backward pass scatters the sum of the gradients."""

    @staticmethod
    def forward(ctx, x, ranks, reduction):
        ctx.ranks, ctx.reduction = ranks, reduction
        return gather_sequence(x, ranks.group)

    @staticmethod
    def backward(ctx, gradient):
        return scatter_sequence(ctx.reduction, gradient, ctx.ranks.group), None, None


class _ReduceFromTensorRegion(torch.autograd.Function):
    """Sum over the tensor-parallel ranks; the backward pass copies the gradient to each."""

    @staticmethod
    def forward(ctx, partial, ranks, reduction):
        total = partial.contiguous().clone()
        reduce_in_place(reduction, total, ranks.group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class _ReduceScatterToSequenceRegion(torch.autograd.Function):
    """This rank's positions of the sum over the tensor-parallel ranks; the backward pass gathers the gradients of all
    positions."""

    @staticmethod
    def forward(ctx, partial, ranks, reduction):
        ctx.ranks = ranks
        return scatter_sequence(reduction, partial, ranks.group)

    @staticmethod
    def backward(ctx, gradient):
        return gather_sequence(gradient, ctx.ranks.group), None, None


class _SequenceParallelLinear(torch.autograd.Function):
    """All ranks' positions, gathered, times this rank's features.

    Only this rank's own positions are stored for the backward pass, which gathers the others again: that is the memory
    that sequence parallelism saves. The weight is not saved as a tensor, since engines that shard it restore its values
    before the backward pass.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, ranks, reduction):
        ctx.save_for_backward(x)
        ctx.weight, ctx.has_bias, ctx.ranks, ctx.reduction = weight, bias is not None, ranks, reduction
        return F.linear(gather_sequence(x, ranks.group), weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        flat = gradient.flatten(0, 1)
        input_gradient = scatter_sequence(ctx.reduction, gradient @ ctx.weight, ctx.ranks.group)
        weight_gradient = flat.t() @ gather_sequence(x, ctx.ranks.group).flatten(0, 1)
        return input_gradient, weight_gradient, flat.sum(0) if ctx.has_bias else None, None, None


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
        # In place, since backward runs once and the logits' gradient is among the largest tensors of a rank.
        probabilities[rows, local] -= is_mine.to(probabilities.dtype)
        return probabilities.mul_(gradient / len(local)), None, None


def _local_ids(ids: torch.Tensor, rows: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids relative to this rank's first row, 0 where another rank owns them, and a mask of those it owns."""
    local = ids - rank * rows
    is_mine = (local >= 0) & (local < rows)
    return local.masked_fill(~is_mine, 0), is_mine
