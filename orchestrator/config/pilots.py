"""Nodes that pilots of a search hold."""

from __future__ import annotations

from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.slurm_pilot.sizing import pilot_nodes


def nodes_per_pilot(spec: SearchSpec) -> int:
    """The nodes of each pilot, where the launcher has pilots."""
    return pilot_nodes(spec.launcher.slurm.pilot_nodes, spec.cluster, spec.search.parallel_trials)
