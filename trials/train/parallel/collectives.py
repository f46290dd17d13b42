"""Every collective between ranks that training needs, by name, behind a few functions."""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist

from trials.trial import LowerStrEnum

SEQUENCE_DIM = 1
"""Hidden states are (B, S, H)."""

# torch 2.13 renames these two, and warns at every call; the new names are absent from older releases.
warnings.filterwarnings("ignore", r".*(reduce_scatter_tensor|all_gather_into_tensor)", FutureWarning)


class Reduction(LowerStrEnum):
    """Reductions by the values they sum (or maximise), the ranks, and the phase of the step."""

    ROW_PARALLEL_OUTPUT = "row_parallel_output"  # forward, tensor-parallel ranks: each held an inner slice
    COLUMN_PARALLEL_INPUT_GRADIENT = "column_parallel_input_gradient"  # backward, tensor-parallel ranks
    EXPERT_INPUT_GRADIENT = "expert_input_gradient"  # backward, tensor-parallel ranks: each held a slice of each expert
    EXPERT_OUTPUT = "expert_output"  # forward, tensor-parallel ranks
    EMBEDDING_OUTPUT = "embedding_output"  # forward, tensor-parallel ranks: a token's row is on one of them
    HEAD_INPUT_GRADIENT = "head_input_gradient"  # backward, tensor-parallel ranks
    LARGEST_LOGIT = "largest_logit"  # loss, tensor-parallel ranks, a maximum
    EXPONENTIALS = "exponentials"  # loss, tensor-parallel ranks: the softmax's denominator
    TARGET_LOGIT = "target_logit"  # loss, tensor-parallel ranks: the target's column is on one of them
    PARTIAL_GRADIENT = "partial_gradient"  # after backward, tensor-parallel ranks: each saw its own positions or heads
    TIED_GRADIENT = "tied_gradient"  # after backward, first and last stage: both hold the token table
    DATA_PARALLEL_GRADIENT = "data_parallel_gradient"  # during or after backward, data-parallel ranks
    NORM_OVER_TENSOR_RANKS = "norm_over_tensor_ranks"  # before clipping
    NORM_OVER_DATA_RANKS = "norm_over_data_ranks"  # before clipping, where data-parallel ranks share the gradients
    NORM_OVER_STAGES = "norm_over_stages"  # before clipping


def reduce_in_place(reduction: Reduction, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Sum `tensor` over `group` (take the maximum for LARGEST_LOGIT); no group is one rank, nothing to do."""
    if group is None:
        return
    operation = dist.ReduceOp.MAX if reduction is Reduction.LARGEST_LOGIT else dist.ReduceOp.SUM
    dist.all_reduce(tensor, op=operation, group=group)


def start_reduce(reduction: Reduction, tensor: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Start summing `tensor` in place over `group`; wait for the work before reading it."""
    return dist.all_reduce(tensor, group=group, async_op=True)


def start_reduce_scatter(
    reduction: Reduction, mine: torch.Tensor, all_parts: torch.Tensor, group: dist.ProcessGroup
) -> dist.Work:
    """Start summing `all_parts` over `group`, with this rank's equal share of the sum in `mine`."""
    return dist.reduce_scatter_tensor(mine, all_parts, group=group, async_op=True)


def reduce_scatter(reduction: Reduction, mine: torch.Tensor, all_parts: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Blocking `start_reduce_scatter`, since torch.compile breaks the graph at an asynchronous one."""
    dist.reduce_scatter_tensor(mine, all_parts, group=group)


def start_gather(all_parts: torch.Tensor, mine: torch.Tensor, group: dist.ProcessGroup) -> dist.Work:
    """Start gathering every rank's `mine` into `all_parts`, in rank order."""
    return dist.all_gather_into_tensor(all_parts, mine, group=group, async_op=True)


def scatter_sequence(reduction: Reduction, partial: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Each rank's part (B, S, H) of a sum -> this rank's positions (B, S / ranks, H) of the sum."""
    parts = torch.cat(partial.chunk(dist.get_world_size(group), SEQUENCE_DIM))
    mine = parts.new_empty((partial.shape[0], partial.shape[1] // dist.get_world_size(group), *partial.shape[2:]))
    reduce_scatter(reduction, mine, parts, group)
    return mine


def gather_sequence(mine: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Each rank's positions (B, S / ranks, H) -> all positions (B, S, H)."""
    size = dist.get_world_size(group)
    parts = mine.new_empty((size * mine.shape[0], *mine.shape[1:]))
    dist.all_gather_into_tensor(parts, mine.contiguous(), group=group)
    return torch.cat(parts.chunk(size), SEQUENCE_DIM)
