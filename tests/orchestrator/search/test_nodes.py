"""Which nodes are avoided after what happened on them."""

from __future__ import annotations

import pytest

from orchestrator.search.nodes import nodes_to_avoid
from search_spaces.layout import Layout
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialState

FOUR_RANKS_ON_TWO_NODES = Layout(num_nodes=2, tensor_parallel=2, data_parallel=2)


def failed(name: str, reason: FailureReason, *nodes: str, rank: int | None = None) -> Trial:
    outcome = None
    if rank is not None:
        outcome = Outcome("nodes-aaaaaa", name, "a1", "0" * 32, OutcomeStatus.FAILED, reason=reason, rank=rank)
    attempt = Attempt(
        name, "a1", "0" * 32, 2, 60.0, state=TrialState.FAILED, reason=reason, nodes=nodes, outcome=outcome
    )
    return Trial(name, FOUR_RANKS_ON_TWO_NODES, attempts=(attempt,))


def avoided(mine: Trial, *others: Trial) -> tuple[str, ...]:
    return nodes_to_avoid(SearchRecord("nodes-aaaaaa", {}, "c0de", 1e9, trials=(*others, mine)), mine, num_nodes=4)


@pytest.mark.parametrize("reason", [FailureReason.NODE_FAILURE, FailureReason.BOOT_FAILURE, FailureReason.DIRTY_GPU])
def test_a_bad_node_is_avoided_by_every_trial(reason):
    assert avoided(Trial("t0002", FOUR_RANKS_ON_TWO_NODES), failed("t0001", reason, "n2", "n1")) == ("n1", "n2")


@pytest.mark.parametrize("reason", [FailureReason.HANG, FailureReason.LAUNCH_FAILURE])
def test_after_a_hang_only_the_trial_itself_goes_elsewhere(reason):
    assert avoided(failed("t0001", reason, "n1")) == ("n1",)
    assert avoided(Trial("t0002", FOUR_RANKS_ON_TWO_NODES), failed("t0001", reason, "n1")) == ()


def test_the_rank_that_told_of_it_names_the_node():
    assert avoided(failed("t0001", FailureReason.DIRTY_GPU, "n1", "n2", rank=3)) == ("n2",)
    assert avoided(failed("t0001", FailureReason.DIRTY_GPU, "n1", "n2", rank=1)) == ("n1",)


@pytest.mark.parametrize("reason", [FailureReason.GPU_OOM, FailureReason.SCRIPT_ERROR, FailureReason.TIME_LIMIT])
def test_what_is_the_layouts_fault_blames_no_node(reason):
    assert avoided(failed("t0001", reason, "n1")) == ()
