"""Size of a search's pilots."""

from __future__ import annotations

from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.slurm_pilot.sizing import pilot_nodes


def nodes_per_pilot(spec: SearchSpec) -> int:
    """Nodes of each pilot, if the launcher uses pilots."""
    return pilot_nodes(spec.launcher.slurm.pilot_nodes, spec.cluster, spec.search.parallel_trials)
