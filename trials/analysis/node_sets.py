"""Sets of nodes that the runs of a layout were on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from trials.trial import Trial, TrialState


def node_sets(runs: Iterable[Trial]) -> list[frozenset[str]]:
    """Nodes of each measured run, in order; runs whose nodes are not known are left out."""
    measured = (run.last_attempt for run in runs if run.state is TrialState.MEASURED)
    return [frozenset(last.nodes) for last in measured if last is not None and last.nodes]


def are_disjoint(sets: Sequence[frozenset[str]]) -> bool:
    """True if two of these sets have no node in common."""
    return any(not one & other for one, other in combinations(sets, 2))


def runs_on_disjoint_nodes(runs: Iterable[Trial]) -> bool | None:
    """True if two of these runs were on disjoint sets of nodes; None with fewer than two, or all on one node."""
    sets = node_sets(runs)
    return are_disjoint(sets) if len(sets) > 1 and len(frozenset().union(*sets)) > 1 else None
