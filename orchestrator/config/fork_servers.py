"""Fork servers of a search (trials/fork_server): the engines that have one on each node, and their memory. Pure."""

from __future__ import annotations

from orchestrator.config.consistency import FORKING_LAUNCHERS
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.spec import SearchSpec
from slurm.nodes import memory_mib
from trials.fork_server.owner import MOST_SERVERS
from trials.trainers.registry import TRAINERS

SERVER_MEMORY_MIB = 512
"""Host memory booked for a server: docs/trainer.md#warm-starts has what was measured."""


def forked_engines(spec: SearchSpec) -> tuple[str, ...]:
    """Engines whose ranks are forked where they can be, sorted; none where the search starts all ranks plain."""
    launcher_can = spec.launcher.kind in FORKING_LAUNCHERS
    can = launcher_can and TRAINERS[spec.trainer.kind].preload is not None
    if spec.measure.warm_start is False or not can:
        return ()
    return tuple(
        sorted({*spec.space.given_axes().get("engine", ()), *(layout.engine for layout in spec.candidates or ())})
    )


def launcher_with_servers(spec: SearchSpec) -> LauncherSection:
    """The launcher section of a search with the memory of its servers."""
    return with_server_memory(spec.launcher) if forked_engines(spec) else spec.launcher


def with_server_memory(section: LauncherSection) -> LauncherSection:
    """The section with the memory of as many servers as there may be added to what pilots ask for on each node.

    Unchanged where they ask for none, or for all that a node has.
    """
    if not section.has_pilots or not (asked_mib := memory_mib(section.slurm.mem)):
        return section
    slurm = section.slurm.model_copy(update={"mem": f"{asked_mib + MOST_SERVERS * SERVER_MEMORY_MIB}M"})
    return section.model_copy(update={"slurm": slurm})
