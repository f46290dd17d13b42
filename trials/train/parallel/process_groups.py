"""Rendezvous of a trial's ranks, and the process groups of the layout."""

from __future__ import annotations

import time
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
class Coordinates:
    """A rank's coordinates on each axis. Tensor-parallel ranks are neighbours; then come data-parallel ranks and last
    stages, or the reverse, as the layout's `rank_order` says."""

    tensor: int
    data: int
    stage: int

    @classmethod
    def of(cls, rank: int, layout: Layout) -> Coordinates:
        tensor, rest = rank % layout.tensor_parallel, rank // layout.tensor_parallel
        if layout.rank_order == "tp-pp-dp":
            return cls(tensor, rest // layout.pipeline_parallel, rest % layout.pipeline_parallel)
        return cls(tensor, rest % layout.data_parallel, rest // layout.data_parallel)

    def rank(self, layout: Layout) -> int:
        if layout.rank_order == "tp-pp-dp":
            rest = self.data * layout.pipeline_parallel + self.stage
        else:
            rest = self.stage * layout.data_parallel + self.data
        return rest * layout.tensor_parallel + self.tensor


@dataclass(frozen=True)
class World:
    """The groups of this rank; None where it would be alone. `ends` is the group of first and last stage."""

    layout: Layout
    coordinates: Coordinates
    tensor: dist.ProcessGroup | None
    data: dist.ProcessGroup | None
    stages: dist.ProcessGroup | None
    ends: dist.ProcessGroup | None

    @property
    def tensor_ranks(self) -> TensorParallelRanks:
        return TensorParallelRanks(
            self.coordinates.tensor,
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
    at = Coordinates.of(rank, layout)
    stages = range(layout.pipeline_parallel)
    # The ends come last: torch names a group after its ranks and the number of groups that each of them has, which has
    # to be equal for them to find each other, and the stages in between have no such group.
    return World(
        layout=layout,
        coordinates=at,
        tensor=_group(layout, [Coordinates(t, at.data, at.stage) for t in range(layout.tensor_parallel)]),
        data=_group(layout, [Coordinates(at.tensor, d, at.stage) for d in range(layout.data_parallel)]),
        stages=_group(layout, [Coordinates(at.tensor, at.data, s) for s in stages]),
        ends=_ends_group(layout, at) if tied and at.stage in (stages[0], stages[-1]) else None,
    )


def _ends_group(layout: Layout, at: Coordinates) -> dist.ProcessGroup | None:
    ends = sorted({0, layout.pipeline_parallel - 1})
    return _group(layout, [Coordinates(at.tensor, at.data, stage) for stage in ends])


def _group(layout: Layout, members: list[Coordinates]) -> dist.ProcessGroup | None:
    """Created by its members only, all in the same order of axes, so that no two wait for each other."""
    if len(members) == 1:
        return None
    ranks = [member.rank(layout) for member in members]
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
