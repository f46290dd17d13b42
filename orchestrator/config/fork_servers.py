"""Fork servers of a search (trials/fork_server): the engines that have one on each node, and their memory. Pure."""

from __future__ import annotations

from orchestrator.config.consistency import FORKING_LAUNCHERS
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.local.fork_servers import MOST_SERVERS
from orchestrator.schema.launcher import LauncherSection
from search_spaces.layouts.layout import SETTINGS
from search_spaces.layouts.settings import settings_of
from slurm.nodes import memory_mib
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
    """The launcher section of a search with the memory of its servers: one for each engine and environment."""
    texts = spec.space.given_axes().get(SETTINGS, ("",)) if spec.candidates is None else ("",)
    num_stacks = 1 if spec.search.against is None else 2
    environments = {tuple(settings_of(text).env.items()) for text in texts}
    return with_server_memory(spec.launcher, len(forked_engines(spec)) * len(environments) * num_stacks)


def with_server_memory(section: LauncherSection, num_servers: int) -> LauncherSection:
    """The section with the servers' memory added to the memory that pilots ask for on each node.

    Unchanged where they ask for none, or for all that a node has.
    """
    asked_mib = memory_mib(section.slurm.mem) if section.has_pilots else 0
    servers_mib = min(MOST_SERVERS, num_servers) * SERVER_MEMORY_MIB
    if asked_mib == 0 or servers_mib == 0:
        return section
    slurm = section.slurm.model_copy(update={"mem": f"{asked_mib + servers_mib}M"})
    return section.model_copy(update={"slurm": slurm})
