"""Nodes avoided after failures on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.search.index import SearchIndex
from orchestrator.search.node_exclusion import nodes_to_avoid, with_nodes_of_earlier_runs
from search_spaces.layouts.layout import Layout
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialKind, TrialState

FOUR_RANKS_ON_TWO_NODES = Layout(num_nodes=2, tensor_parallel=2, data_parallel=2)


def failed(name: str, reason: FailureReason, *nodes: str, rank: int | None = None, excerpt: str | None = None) -> Trial:
    outcome = None
    if rank is not None:
        told = {"reason": reason, "rank": rank, "excerpt": excerpt}
        outcome = Outcome("nodes-aaaaaa", name, "a1", "0" * 32, OutcomeStatus.FAILED, **told)
    attempt = Attempt(
        name, "a1", "0" * 32, 2, 60.0, state=TrialState.FAILED, reason=reason, nodes=nodes, outcome=outcome
    )
    return Trial(name, FOUR_RANKS_ON_TWO_NODES, attempts=(attempt,))


def suspect(name: str, *nodes: str, flags: tuple[str, ...] = ("suspect_node",), **fingerprint: object) -> Trial:
    ids = ("nodes-aaaaaa", name, "a1", "0" * 32)
    outcome = Outcome(*ids, OutcomeStatus.MEASURED, flags=flags, fingerprint=fingerprint)
    attempt = Attempt(name, "a1", "0" * 32, 2, 60.0, state=TrialState.MEASURED, nodes=nodes, outcome=outcome)
    return Trial(name, FOUR_RANKS_ON_TWO_NODES, state=TrialState.MEASURED, attempts=(attempt,))


def avoided(mine: Trial, *others: Trial, num_nodes: int = 4) -> tuple[str, ...]:
    search = SearchRecord("nodes-aaaaaa", {}, "c0de", 1e9, trials=(*others, mine))
    index = SearchIndex(search, Objective.TOKENS_PER_SEC, 2)
    return nodes_to_avoid(mine, index.bad_nodes, index.runs_of(mine.layout), num_nodes)


@pytest.mark.parametrize(
    ("reason", "by_itself", "by_others"),
    [
        (FailureReason.NODE_FAILURE, ("n1", "n2"), ("n1", "n2")),
        (FailureReason.BOOT_FAILURE, ("n1", "n2"), ("n1", "n2")),
        (FailureReason.GPU_MEMORY_IN_USE, ("n1", "n2"), ("n1", "n2")),
        (FailureReason.HANG, ("n1", "n2"), ()),
        (FailureReason.LAUNCH_FAILURE, ("n1", "n2"), ()),
        (FailureReason.GPU_OOM, (), ()),
        (FailureReason.TIME_LIMIT, (), ()),
    ],
)
def test_a_bad_node_is_avoided_by_all_after_a_hang_by_the_trial_itself_and_what_is_the_layouts_fault_blames_none(
    reason, by_itself, by_others
):
    trial = failed("t0001", reason, "n2", "n1")
    assert avoided(trial) == by_itself
    assert avoided(Trial("t0002", FOUR_RANKS_ON_TWO_NODES), trial) == by_others


def test_the_rank_that_told_of_it_names_the_node_and_one_that_waited_for_another_does_not():
    assert avoided(failed("t0001", FailureReason.GPU_MEMORY_IN_USE, "n1", "n2", rank=3)) == ("n2",)
    assert avoided(failed("t0001", FailureReason.GPU_MEMORY_IN_USE, "n1", "n2", rank=1)) == ("n1",)
    ecc = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    assert avoided(failed("t0001", FailureReason.NODE_FAILURE, "n1", "n2", rank=3, excerpt=ecc)) == ("n2",)
    for reason in (FailureReason.HANG, FailureReason.NODE_FAILURE):
        assert avoided(failed("t0001", reason, "n1", "n2", rank=0)) == ("n1", "n2")


@pytest.mark.fault(38)
def test_where_a_layouts_run_looked_suspect_or_on_the_node_of_its_slow_device_its_next_run_does_not_go():
    again = Trial("t0002", FOUR_RANKS_ON_TWO_NODES, TrialKind.REPEAT)
    other = Trial("t0003", replace(FOUR_RANKS_ON_TWO_NODES, micro_batch_size=2))
    assert avoided(again, suspect("t0001", "n1", "n2")) == ("n1", "n2")
    assert avoided(again, suspect("t0001", "n1", "n2", flags=("time_limit",))) == ()
    assert avoided(other, suspect("t0001", "n1", "n2")) == ()
    assert avoided(again, suspect("t0001", "n1", "n2", probe_ms_by_rank=[1.0, 1.0, 1.0, 1.3])) == ("n2",)
    assert avoided(again, suspect("t0001", "n1", "n2", probe_ms_by_rank=[1.0, 1.0, 1.0, 1.1])) == ("n1", "n2")


def measured_on(name: str, *nodes: str) -> Trial:
    return suspect(name, *nodes, flags=())


@pytest.mark.parametrize(
    ("earlier", "num_choosable", "expected"),
    [
        ([("n1", "n2")], 4, ("bad",)),  # one other and the bad one: too few
        ([("n1", "n2")], 5, ("bad", "n1", "n2")),
        ([("n1", "n2"), ("n3", "n4")], 9, ("bad",)),  # two runs are on disjoint sets
        ([("n1", "n2"), ("n2", "n3")], 9, ("bad", "n2", "n3")),
        ([("n1", "n2")], None, ("bad",)),  # the launcher has no choice
        ([], 9, ("bad",)),
        ([()], 9, ("bad",)),  # its nodes are not known
    ],
)
def test_a_repeat_goes_to_nodes_that_an_earlier_run_did_not_use(earlier, num_choosable, expected):
    runs = [measured_on(f"t{number:04d}", *nodes) for number, nodes in enumerate(earlier, 1)]
    again = Trial("t0009", FOUR_RANKS_ON_TWO_NODES, TrialKind.REPEAT)
    assert with_nodes_of_earlier_runs(("bad",), again, [*runs, again], num_choosable) == expected


@pytest.mark.fault(38)
def test_suspect_nodes_are_better_than_none_and_bad_ones_are_not():
    again = Trial("t0003", FOUR_RANKS_ON_TWO_NODES, TrialKind.REPEAT)
    bad, run = failed("t0001", FailureReason.GPU_MEMORY_IN_USE, "n3", "n4", rank=2), suspect("t0002", "n1", "n2")
    assert avoided(again, bad, run, num_nodes=4) == ("n4",)
    assert avoided(again, bad, run, num_nodes=5) == ("n1", "n2", "n4")


def test_while_a_setting_may_have_failed_in_its_place_only_retries_avoid_a_node():
    own = replace(FOUR_RANKS_ON_TWO_NODES, settings="env.NET=eth0")
    bad = replace(failed("t0001", FailureReason.NODE_FAILURE, "n1", "n2"), layout=own)
    other, ran = Trial("t0003", FOUR_RANKS_ON_TWO_NODES), replace(measured_on("t0002", "n3", "n4"), layout=own)
    assert avoided(bad) == ("n1", "n2")
    assert avoided(other, bad) == ()
    assert avoided(other, bad, ran) == ("n1", "n2")
    assert avoided(other, replace(failed("t0001", FailureReason.BOOT_FAILURE, "n1"), layout=own)) == ("n1",)
    broken = replace(bad.attempts[0], excerpt="RuntimeError: CUDA error: uncorrectable ECC error encountered")
    assert avoided(other, replace(bad, attempts=(broken,))) == ("n1", "n2")
