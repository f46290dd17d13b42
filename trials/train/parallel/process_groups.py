"""Rendezvous of a trial's ranks, and the process groups of the layout."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from search_spaces.layouts.layout import Layout
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.files.ports import no_free_port_error, ports_to_try
from trials.ranks.address import own_address
from trials.ranks.environment import RankEnvironment
from trials.train.parallel.device import Device
from trials.train.parallel.tensor_parallel import TensorParallelRanks
from trials.trial import TrialSpec

COLLECTIVE_LIMIT = timedelta(seconds=600)
RENDEZVOUS_LIMIT_S = 120.0


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
    """Store in which the ranks publish their addresses; with `tcp` it is rank 0's."""
    path = folder.rendezvous.with_name(f"{folder.rendezvous.name}.r{env.restart}")
    if spec.rendezvous.kind == "file":
        return dist.FileStore(str(path), env.world_size)
    if spec.rendezvous.kind == "tcp":
        host = "127.0.0.1" if spec.num_nodes == 1 else own_address()
        return _serve(path, host, env.world_size) if env.rank == 0 else _connect(path, env.world_size)
    raise ValueError(f"rendezvous.kind is {spec.rendezvous.kind!r}; there are file and tcp")


def _serve(path: Path, host: str, world_size: int) -> dist.Store:
    """Rank 0's store on a free port, published in the attempt's folder."""
    tried = ports_to_try()
    for port in tried:
        try:
            store = _tcp_store(host, port, world_size, is_master=True)
        except dist.DistNetworkError:
            continue  # taken by another process
        write_json(path, {"host": host, "port": port})
        return store
    raise no_free_port_error(len(tried))


def _connect(path: Path, world_size: int) -> dist.Store:
    deadline = time.monotonic() + RENDEZVOUS_LIMIT_S
    while (published := read_json(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 published no address in {path} within {RENDEZVOUS_LIMIT_S:.0f} s")
        time.sleep(0.05)
    return _tcp_store(published["host"], published["port"], world_size, is_master=False)


def _tcp_store(host: str, port: int, world_size: int, is_master: bool) -> dist.Store:
    timeout = timedelta(seconds=RENDEZVOUS_LIMIT_S)
    return dist.TCPStore(host, port, world_size, is_master, timeout=timeout, wait_for_workers=False)
