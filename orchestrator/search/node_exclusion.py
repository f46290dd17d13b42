"""Nodes that an attempt avoids, after failures on them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trials.analysis.node_sets import are_disjoint, node_sets
from trials.failure_policy import NodeBlame, policy_of
from trials.files.tracebacks import is_device_failure
from trials.ledger.events import FabricCheck
from trials.measurement.stragglers import suspect_ranks
from trials.trial import Attempt, Flag, Trial


def nodes_to_avoid(
    trial: Trial, bad_for_all: Collection[str], runs: Sequence[Trial], num_nodes: int
) -> tuple[str, ...]:
    """Nodes that the next attempt of `trial` avoids, sorted.

    `bad_for_all` are the `bad_nodes` of the whole search, `runs` all trials of the layout, `num_nodes` the cluster's
    nodes. Nodes on which another run of the layout was suspect are avoided too, as long as enough others are left.
    """
    bad = {*bad_for_all}
    for attempt in trial.attempts:
        if policy_of(attempt.reason).blame is not NodeBlame.NONE:
            bad.update(_culprits(trial, attempt))
    suspects = bad | {node for run in runs if run.trial != trial.trial for node in _suspect_nodes(run)}
    return tuple(sorted(suspects if _leaves_enough(suspects, num_nodes, trial) else bad))


def with_slow_nodes(avoided: tuple[str, ...], trial: Trial, check: FabricCheck | None) -> tuple[str, ...]:
    """The avoided nodes and those that the fabric check found slow, as long as enough others are left."""
    if check is None or not check.slow_nodes:
        return avoided
    together = {*avoided, *check.slow_nodes}
    return tuple(sorted(together)) if _leaves_enough(together, check.num_available, trial) else avoided


def with_nodes_of_earlier_runs(
    avoided: tuple[str, ...], trial: Trial, runs: Sequence[Trial], num_choosable: int | None
) -> tuple[str, ...]:
    """The avoided nodes and those of an earlier run of a layout that is measured again, until two of its runs are on
    disjoint sets of nodes; as they are where that leaves too few of the `num_choosable` nodes (None: no choice)."""
    earlier = node_sets(run for run in runs if run.trial != trial.trial)
    if num_choosable is None or are_disjoint(earlier):
        return avoided
    for nodes in reversed(earlier):
        together = {*avoided, *nodes}
        if _leaves_enough(together, num_choosable, trial):
            return tuple(sorted(together))
    return avoided


def _leaves_enough(avoided: Collection[str], num_nodes: int, trial: Trial) -> bool:
    """True if the trial fits on the `num_nodes` without the avoided ones."""
    return num_nodes - len(avoided) >= trial.layout.num_nodes


def bad_nodes(trial: Trial, attempt: Attempt) -> tuple[str, ...]:
    """Nodes that every trial avoids after this attempt."""
    is_for_all = policy_of(attempt.reason).blame in (NodeBlame.BY_ALL, NodeBlame.REPORTED_BY_ALL)
    return _culprits(trial, attempt) if is_for_all else ()


def _culprits(trial: Trial, attempt: Attempt) -> tuple[str, ...]:
    """Nodes to blame: that of the rank whose GPU was in use or dead, else all nodes of the attempt.

    A rank that reports a hang or a lost peer was waiting for another one.
    """
    outcome = attempt.outcome
    if outcome is None or outcome.rank is None:
        return attempt.nodes
    is_reported = policy_of(attempt.reason).blame is NodeBlame.REPORTED_BY_ALL
    is_own = is_reported or is_device_failure(outcome.excerpt or "")
    return _nodes_of(trial, attempt, [outcome.rank]) if is_own else attempt.nodes


def _suspect_nodes(run: Trial) -> tuple[str, ...]:
    """Nodes of the slow devices and stragglers of a suspect run; without any, all nodes of the run."""
    last = run.last_attempt
    if last is None or last.outcome is None or Flag.SUSPECT_NODE not in last.outcome.flags:
        return ()
    return _nodes_of(run, last, suspect_ranks(last.outcome.fingerprint, last.outcome.slowest_rank))


def _nodes_of(trial: Trial, attempt: Attempt, ranks: Sequence[int]) -> tuple[str, ...]:
    """Nodes of these ranks; all nodes of the attempt if there are none or they are unknown."""
    ranks_per_node = -(-trial.layout.num_gpus // trial.layout.num_nodes)
    node_indices = {rank // ranks_per_node for rank in ranks}
    if not node_indices or max(node_indices) >= len(attempt.nodes):
        return attempt.nodes
    return tuple(attempt.nodes[index] for index in sorted(node_indices))
