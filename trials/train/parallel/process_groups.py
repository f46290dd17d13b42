"""Rendezvous of a trial's ranks, and the process groups of the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import torch.distributed as dist

from search_spaces.layouts.layout import Layout
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment
from trials.ranks.rendezvous import LIMIT_S, Address, publish_address, published_address
from trials.train.parallel.device import Device
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.trial import TrialSpec

COLLECTIVE_LIMIT = timedelta(seconds=600)


@dataclass(frozen=True)
class World:
    """Coordinates of this rank in the layout's mesh, and its groups; None where it would be alone. `ends` is the group
    of first and last stage."""

    layout: Layout
    coordinates: Mapping[str, int]
    tensor: dist.ProcessGroup | None
    data: dist.ProcessGroup | None
    stages: dist.ProcessGroup | None
    ends: dist.ProcessGroup | None

    @property
    def tensor_ranks(self) -> TensorParallelRanks:
        return TensorParallelRanks(
            self.coordinates["tp"],
            self.layout.tensor_parallel,
            self.tensor,
            splits_sequence=self.layout.sequence_parallel,
        )


def group_size(group: dist.ProcessGroup | None) -> int:
    """Size of the group itself; 1 for None."""
    return 1 if group is None else dist.get_world_size(group)


def join_world(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, device: Device) -> World:
    """Rendezvous with all other ranks and form the layout's groups; torch's DistError or TimeoutError when they stay
    away."""
    # No device_id: with it NCCL splits each new group from the world, in which every rank of the world has to take
    # part, and the stages between first and last are not in the group that shares the token table.
    dist.init_process_group(
        device.backend,
        store=open_store(spec, folder, env),
        rank=env.rank,
        world_size=env.world_size,
        timeout=COLLECTIVE_LIMIT,
    )
    return _form_groups(spec.layout.canonical(), env.rank, spec.model.tied_embeddings)


def _form_groups(layout: Layout, rank: int, tied: bool) -> World:
    mesh = layout.mesh
    stages = mesh.group(rank, "pp")
    ends = sorted({stages[0], stages[-1]})
    # The ends come last: torch names a group after its ranks and the number of groups that each of them has, which has
    # to be equal for them to find each other, and the stages in between have no such group.
    return World(
        layout=layout,
        coordinates=mesh.coordinates(rank),
        tensor=_group(mesh.group(rank, "tp")),
        data=_group(mesh.group(rank, "dp")),
        stages=_group(stages),
        ends=_group(ends) if tied and rank in ends else None,
    )


def _group(ranks: list[int]) -> dist.ProcessGroup | None:
    """Created by its members only, all in the same order of dimensions, so that no two wait for each other."""
    if len(ranks) == 1:
        return None
    return dist.new_group(ranks, timeout=COLLECTIVE_LIMIT, use_local_synchronization=True)


def open_store(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> dist.Store:
    """Store in which the ranks publish their addresses: a file within a node, which only its owner can reach, else
    rank 0's."""
    path = folder.rendezvous(env.restart)
    if spec.num_nodes == 1:
        return dist.FileStore(str(path), env.world_size)
    if env.rank == 0:
        serve = partial(_tcp_store, env.world_size, True)
        return publish_address(spec, path, serve, is_taken=dist.DistNetworkError)
    return _tcp_store(env.world_size, False, published_address(path))


def _tcp_store(world_size: int, is_master: bool, address: Address) -> dist.Store:
    timeout = timedelta(seconds=LIMIT_S)
    return dist.TCPStore(address.host, address.port, world_size, is_master, timeout=timeout, wait_for_workers=False)
