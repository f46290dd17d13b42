"""Timeline of a pipeline schedule, simulated with equal stages. Pure.

GPipe (Huang et al., arXiv 1811.06965) does all forward passes first; 1F1B (Narayanan et al., arXiv 2104.04473) begins a
backward pass as soon as there is one; interleaved, each stage holds several chunks of layers and takes them by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from search_spaces.layouts.layout import V_SCHEDULES, Layout

_FORWARD = 1.0
_BACKWARD = 2.0
_MOST_BOXES = 2400
_ROUNDS = 3
_FEW = 16
"""Micro-batches drawn: at most max(_FEW, _ROUNDS x stages), since the rest looks the same."""


@dataclass(frozen=True)
class Box:
    """Pass of one micro-batch through one chunk of a stage; times in forward passes of a whole stage."""

    stage: int
    chunk: int
    micro_batch: int
    is_forward: bool
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Passes of the first `num_drawn` micro-batches of a step, simulated as if there were no more.

    `bubble` is the idle share of a stage in a whole step.
    """

    boxes: tuple[Box, ...]
    num_drawn: int
    num_micro_batches: int
    bubble: float


def backward_passes(layout: Layout, num_layers: int) -> float:
    """Duration of a backward pass in forward passes: two, and one more where all layers are recomputed as a whole."""
    return _BACKWARD + layout.layers_recomputed(num_layers) / num_layers


def pipeline_timeline(layout: Layout, num_layers: int) -> Timeline | None:
    """Timeline of one step of a layout and a model of so many layers; None without pipeline stages, and for schedules
    that split the backward pass, which are not simulated."""
    layout = layout.canonical()
    stages, chunks, total = layout.pipeline_parallel, layout.virtual_pipeline_stages, layout.grad_accum_steps
    if stages == 1 or layout.pipeline_schedule in V_SCHEDULES:
        return None
    drawn = _num_drawn(stages, chunks, total)
    orders = [list(_order(layout.pipeline_schedule, stage, stages, chunks, drawn)) for stage in range(stages)]
    bubble = (stages - 1) / chunks / (total + (stages - 1) / chunks)
    return Timeline(tuple(_simulate(orders, chunks, backward_passes(layout, num_layers))), drawn, total, bubble)


def _num_drawn(stages: int, chunks: int, total: int) -> int:
    """Number of micro-batches to draw; a multiple of the stages for interleaved schedules."""
    most = min(total, max(_FEW, _ROUNDS * stages), max(stages, _MOST_BOXES // (2 * stages * chunks)))
    return max(stages, most // stages * stages) if chunks > 1 else max(1, most)


_Pass = tuple[int, int, bool]
"""Chunk, micro-batch, and True for a forward pass."""


def _order(schedule: str, stage: int, stages: int, chunks: int, count: int) -> Iterator[_Pass]:
    forward = [(chunk, batch, True) for chunk, batch in _rounds(stages, chunks, count)]
    backward = [(chunks - 1 - chunk, batch, False) for chunk, batch in _rounds(stages, chunks, count)]
    if schedule == "gpipe":
        ahead = len(forward)
    elif chunks > 1:
        ahead = min(len(forward), 2 * (stages - stage - 1) + (chunks - 1) * stages)
    else:
        ahead = min(len(forward), stages - stage - 1)
    yield from forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        yield one
        yield other
    yield from backward[len(forward) - ahead :]


def _rounds(stages: int, chunks: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield chunk and micro-batch in a stage's order: a round of micro-batches through each chunk in turn."""
    if chunks == 1:
        yield from ((0, batch) for batch in range(count))
        return
    for first in range(0, count, stages):
        for chunk in range(chunks):
            yield from ((chunk, batch) for batch in range(first, first + stages))


def _simulate(orders: list[list[_Pass]], chunks: int, backward: float) -> Iterator[Box]:
    """Simulate: each stage does its passes in order, each as soon as the stage is free and its input is ready."""
    stages, free, ended = len(orders), [0.0] * len(orders), dict[tuple[int, int, bool], float]()
    next_of, left = [0] * stages, sum(map(len, orders))
    while left:
        before = left
        for stage, order in enumerate(orders):
            while next_of[stage] < len(order):
                chunk, batch, is_forward = order[next_of[stage]]
                place = chunk * stages + stage
                ready = _ready(place, stages * chunks - 1, batch, is_forward, ended)
                if ready is None:
                    break
                start = max(free[stage], ready)
                free[stage] = start + (_FORWARD if is_forward else backward) / chunks
                ended[place, batch, is_forward] = free[stage]
                yield Box(stage, chunk, batch, is_forward, start, free[stage])
                next_of[stage] += 1
                left -= 1
        if left == before:
            raise AssertionError("deadlock: every stage waits for another")


def _ready(
    place: int, last: int, batch: int, is_forward: bool, ended: dict[tuple[int, int, bool], float]
) -> float | None:
    """Time at which the input of a pass is ready; None while unknown. `place` counts chunks in the model's order."""
    if is_forward:
        return 0.0 if place == 0 else ended.get((place - 1, batch, True))
    return ended.get((last, batch, True)) if place == last else ended.get((place + 1, batch, False))
