"""Small collectives that show every rank what each of them saw, so that all decide alike.

Numbers go in a table, everything else as JSON. torch's collectives of objects are not used: they unpickle what arrives,
and whoever reaches the port of a rank may send.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
import torch.distributed as dist

MAX_JSON_BYTES = 16 * 2**20
"""What one rank may tell the others at once. A profile of ten thousand transfers takes a megabyte."""


@dataclass(frozen=True)
class RankStep:
    """One rank's view of one step. `loss` counts on the last stage only; device memory is nan on a CPU, and so is
    `gpu_utilization` wherever its driver was not asked.

    `data_wait_s` is the part of the step time that was spent waiting for the batch. `target_step_time_s` is rank 0's
    alone: the step time at which this layout could still be the best; nan where it is not compared with any.
    """

    step_time_s: float
    elapsed_s: float
    loss: float
    grad_norm: float
    samples: float
    allocated_gib: float
    reserved_gib: float
    host_gib: float
    data_wait_s: float = 0.0
    target_step_time_s: float = math.nan
    gpu_utilization: float = math.nan


@dataclass(frozen=True)
class RankCount:
    """What one rank counted over the whole trial, as in `EngineCounts`; and the memory its host had left in the end."""

    tensor_parallel: float
    pipeline_parallel: float
    data_parallel: float
    parameters: float
    optimizer_parameters: float
    micro_batches: float
    samples: float
    peak_gib: float
    peak_allocated_gib: float
    host_available_gib: float


@dataclass(frozen=True)
class RankHost:
    """Where a rank runs, and the milliseconds its device takes for the probe (None: not probed)."""

    host: str
    probe_ms: float | None


def gather_hosts(mine: RankHost, device: torch.device) -> list[RankHost]:
    """Every rank's place, in rank order. Collective over the world."""
    return [RankHost(str(told["host"]), told["probe_ms"]) for told in gather_json(asdict(mine), device)]


def barrier(device: torch.device) -> None:
    """All ranks are here once the device is synchronised, which is left to the caller: on a GPU this returns before.
    Collective over the world."""
    dist.all_reduce(torch.zeros(1, device=device))


def gather_steps(mine: RankStep, device: torch.device) -> list[RankStep]:
    """Every rank's view, in rank order. Collective over the world."""
    return [RankStep(*row) for row in _gather(astuple(mine), device)]


def gather_counts(mine: RankCount, device: torch.device) -> list[RankCount]:
    """Every rank's counts, in rank order. Collective over the world."""
    return [RankCount(*row) for row in _gather(astuple(mine), device)]


def gather_json(mine: Any, device: torch.device, longest_bytes: int = MAX_JSON_BYTES) -> list[Any]:
    """What each rank tells, as JSON holds it, in rank order. ValueError on every rank where one tells more than
    `longest_bytes`, or what is no JSON. Collective over the world."""
    words = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
    lengths = [int(length) for (length,) in _gather((len(words),), device)]
    for rank, length in enumerate(lengths):
        if not 0 <= length <= longest_bytes:
            raise ValueError(f"rank {rank} tells {length} bytes, more than {longest_bytes}")
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(words)] = words.to(device)
    told = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(told, padded)
    return [json.loads(bytes(row[:length].tolist())) for row, length in zip(told, lengths, strict=True)]


def _gather(row: tuple[float, ...], device: torch.device) -> list[list[float]]:
    """Each fills its own row of a sum; double precision keeps whole numbers exact up to 2^53."""
    table = torch.zeros((dist.get_world_size(), len(row)), dtype=torch.float64, device=device)
    table[dist.get_rank()] = torch.tensor(row, dtype=torch.float64)
    dist.all_reduce(table)
    return table.tolist()
