"""Check of Slurm's blocks against the link domains of the search's cluster."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.diagnostics.doctor.finding import Finding, note, ok, warning
from search_spaces.hardware.cluster import Cluster
from slurm.interface import Slurm

_KEY = "launcher.slurm.segment"


def check_blocks(slurm: Slurm, cluster: Cluster, segment: int | None) -> Iterator[Finding]:
    """Findings on the blocks that keep jobs in link domains of several nodes; none for a cluster without these.

    `segment` is that of the search file.
    """
    nodes = cluster.domain_nodes
    if nodes == 1:
        return
    blocks = slurm.blocks()
    if not blocks:
        words = f"Slurm shows no blocks (topology/block), but link domains have {nodes} nodes"
        if segment == 0:
            yield note(
                "blocks", f"{words}: a job may lie in several", f"nothing where all nodes are in one; {_KEY} is 0"
            )
            return
        fix = f"set {_KEY} to 0 where all nodes are in one link domain; else ask the site for topology/block"
        yield warning("blocks", f"{words}: it may refuse --segment, or spread jobs", fix)
    elif max(blocks) < nodes:
        words = f"the largest of {len(blocks)} blocks has {max(blocks)} nodes, but link domains have {nodes}"
        fix = f"set {_KEY} to {max(blocks)}, or num_ranks of the last of cluster.links.domains to what it has"
        yield warning("blocks", f"{words}: a job of as many nodes never starts", fix)
    else:
        size = f"{min(blocks)} to {max(blocks)}" if min(blocks) < max(blocks) else str(max(blocks))
        yield ok("blocks", f"{len(blocks)} of {size} nodes; link domains have {nodes}")
