"""Small collectives that share each rank's data with all ranks, so that all take the same decision.

Numbers go in a table, everything else as JSON. torch's object collectives are not used: they unpickle what arrives, and
anyone who reaches a rank's port can send.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from search_spaces.decoding import decode, encode
from search_spaces.model_shape import ModelShape

T = TypeVar("T")

MAX_JSON_BYTES = 16 * 2**20
"""Limit of one rank's JSON. A profile of ten thousand transfers takes a megabyte."""


@dataclass(frozen=True)
class RankStep:
    """One rank's view of one step. `loss` counts on the last stage only; device memory is nan on a CPU, and so is
    `gpu_utilization` where the driver was not asked. `squared_lengths` is the sum over the step's documents on this
    data-parallel rank of their squared lengths, nan where attention is not by document.

    `data_wait_s` is the part of the step time spent waiting for the batch. `target_step_time_s` is set by rank 0 alone:
    the step time at which this layout could still be the best; nan where it is not compared with any. `waiting_s` is
    the part of the step time spent waiting in collectives, nan where it was not timed, and `timed_calls` how often that
    was looked at.
    """

    step_time_s: float
    elapsed_s: float
    loss: float
    grad_norm: float
    samples: float
    allocated_gib: float
    reserved_gib: float
    host_gib: float
    device_gib: float = math.nan
    data_wait_s: float = 0.0
    target_step_time_s: float = math.nan
    gpu_utilization: float = math.nan
    waiting_s: float = math.nan
    timed_calls: float = 0.0
    squared_lengths: float = math.nan


@dataclass(frozen=True)
class RankHost:
    """A rank's node, and the milliseconds of its device's probe (None: not probed). The node has Slurm's name, or the
    host's without Slurm."""

    host: str
    probe_ms: float | None


def barrier(device: torch.device) -> None:
    """Barrier over the world once the caller has synchronised the device: on a GPU this returns before. Collective."""
    dist.all_reduce(torch.zeros(1, device=device))


def gather_steps(mine: RankStep, device: torch.device) -> list[RankStep]:
    """Every rank's view, in rank order. Collective over the world."""
    return [RankStep(*row) for row in _gather(astuple(mine), device)]


def gather_alike(mine: T, device: torch.device) -> list[T]:
    """Every rank's dataclass of this kind, in rank order. Collective over the world."""
    return [decode(type(mine), one) for one in gather_json(encode(mine), device)]


def sum_expert_tokens(mine: Mapping[int, torch.Tensor], model: ModelShape, device: torch.device) -> list[list[float]]:
    """Tokens of each expert over all ranks, a row for each layer that has experts. Collective over the world."""
    table = torch.zeros((model.num_layers, model.num_experts or 0), dtype=torch.float64, device=device)
    for layer, tokens in mine.items():
        table[layer] = tokens
    dist.all_reduce(table)
    return [table[layer].tolist() for layer in range(model.num_layers) if model.has_experts(layer)]


def gather_json(mine: Any, device: torch.device, longest_bytes: int = MAX_JSON_BYTES) -> list[Any]:
    """Every rank's value as JSON, in rank order. Collective over the world.

    ValueError on every rank where one exceeds `longest_bytes`, or sends what is not JSON.
    """
    encoded = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8)
    lengths = [int(length) for (length,) in _gather((len(encoded),), device)]
    for rank, length in enumerate(lengths):
        if not 0 <= length <= longest_bytes:
            raise ValueError(f"rank {rank} sent {length} bytes, more than the limit of {longest_bytes}")
    padded = torch.zeros(max(lengths), dtype=torch.uint8, device=device)
    padded[: len(encoded)] = encoded.to(device)
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return [json.loads(bytes(row[:length].tolist())) for row, length in zip(gathered, lengths, strict=True)]


def _gather(row: tuple[float, ...], device: torch.device) -> list[list[float]]:
    """Each rank's row, by summing tables in which each fills its own; double precision keeps integers exact up to
    2^53."""
    table = torch.zeros((dist.get_world_size(), len(row)), dtype=torch.float64, device=device)
    table[dist.get_rank()] = torch.tensor(row, dtype=torch.float64)
    dist.all_reduce(table)
    return table.tolist()
