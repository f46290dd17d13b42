"""Every reduction that training needs, by name, behind one function."""

from __future__ import annotations

import torch
import torch.distributed as dist

from trials.trial import Word


class Reduction(Word):
    """Which partial results are summed (or maximised) over which ranks, and when."""

    ROW_PARALLEL_OUTPUT = "row_parallel_output"  # forward, tensor ranks: each held a slice of the inner dimension
    COLUMN_PARALLEL_INPUT_GRADIENT = "column_parallel_input_gradient"  # backward, tensor ranks
    EMBEDDING_OUTPUT = "embedding_output"  # forward, tensor ranks: a token's row lives on one of them
    HEAD_INPUT_GRADIENT = "head_input_gradient"  # backward, tensor ranks
    LARGEST_LOGIT = "largest_logit"  # loss, tensor ranks, a maximum
    EXPONENTIALS = "exponentials"  # loss, tensor ranks: the softmax's denominator
    TARGET_LOGIT = "target_logit"  # loss, tensor ranks: the target's column lives on one of them
    TIED_GRADIENT = "tied_gradient"  # after backward, first and last stage: both hold the token table
    DATA_PARALLEL_GRADIENT = "data_parallel_gradient"  # after backward, data ranks
    NORM_OVER_TENSOR_RANKS = "norm_over_tensor_ranks"  # before clipping
    NORM_OVER_STAGES = "norm_over_stages"  # before clipping


def reduce_in_place(reduction: Reduction, tensor: torch.Tensor, group: dist.ProcessGroup | None) -> None:
    """Sum `tensor` over `group` (take the maximum for LARGEST_LOGIT); no group is one rank, nothing to do."""
    if group is None:
        return
    operation = dist.ReduceOp.MAX if reduction is Reduction.LARGEST_LOGIT else dist.ReduceOp.SUM
    dist.all_reduce(tensor, op=operation, group=group)
