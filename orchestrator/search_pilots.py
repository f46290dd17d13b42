"""Nodes that pilots of a search hold."""

from __future__ import annotations

from orchestrator.launchers.slurm_pilot_plan import pilot_nodes
from orchestrator.search_spec import SearchSpec


def nodes_of_pilots(spec: SearchSpec) -> int:
    """The nodes of each pilot, where the launcher has pilots."""
    return pilot_nodes(spec.launcher.slurm.pilot_nodes, spec.cluster, spec.search.parallel_trials)
