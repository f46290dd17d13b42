"""Which nodes an attempt keeps away from, after what happened on them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Trial

_BAD_FOR_ALL = (FailureReason.NODE_FAILURE, FailureReason.BOOT_FAILURE, FailureReason.DIRTY_GPU)
"""The machine's fault for certain: no trial of the search goes there again."""

_BAD_FOR_THIS_TRIAL = (*_BAD_FOR_ALL, FailureReason.HANG, FailureReason.LAUNCH_FAILURE)
"""Perhaps the machine's fault: the trial is tried again elsewhere, which tells."""


def nodes_to_avoid(search: SearchRecord, trial: Trial) -> tuple[str, ...]:
    """The nodes the next attempt of `trial` is kept away from, sorted."""
    bad = {node for other in search.trials for node in _bad_nodes(other, _BAD_FOR_ALL)}
    return tuple(sorted(bad | set(_bad_nodes(trial, _BAD_FOR_THIS_TRIAL))))


def _bad_nodes(trial: Trial, reasons: tuple[FailureReason, ...]) -> Iterator[str]:
    for attempt in trial.attempts:
        if attempt.reason in reasons:
            yield from _culprits(trial, attempt)


def _culprits(trial: Trial, attempt: Attempt) -> tuple[str, ...]:
    """The node of the rank that told of it, where one did; else all the attempt ran on."""
    rank = None if attempt.outcome is None else attempt.outcome.rank
    ranks_per_node = -(-trial.layout.num_gpus // trial.layout.num_nodes)
    if rank is None or rank // ranks_per_node >= len(attempt.nodes):
        return attempt.nodes
    return (attempt.nodes[rank // ranks_per_node],)
