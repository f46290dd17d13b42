"""Batch and ranks of an imported layout: what follows from the numbers that a file has, and whether they agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, layout_mesh


def complete_batch(
    layout: dict[str, Any],
    batch: int | None,
    num_nodes: int | None,
    gpus_per_node: int | None,
    in_doubt: Collection[str] = (),
) -> int | None:
    """Add num_nodes, and what of the batch's factors follows from the others; returns the global batch.

    Where the file has neither batch nor accumulation, the batch is one micro-batch a data-parallel rank; None if one of
    them is in doubt. InputError for numbers that contradict each other.
    """
    _add_data_parallel(layout, num_nodes, gpus_per_node)
    _add_factor(layout, batch)
    micro, data = layout.get("micro_batch_size"), layout.get("data_parallel")
    if not (micro and data):
        return batch
    if batch is None and {"global_batch_size", "grad_accum_steps"} & {*in_doubt}:
        return None
    batch = batch or micro * data * layout.get("grad_accum_steps", 1)
    if batch % (micro * data):
        raise _not_a_multiple(batch, micro * data, f"micro batch {micro} x data {data}")
    _add(layout, "grad_accum_steps", batch // (micro * data), BATCH_RULE)
    return batch


def _add_data_parallel(layout: dict[str, Any], num_nodes: int | None, gpus_per_node: int | None) -> None:
    tensor, pipeline = layout.get("tensor_parallel"), layout.get("pipeline_parallel")
    if not (num_nodes and gpus_per_node and tensor and pipeline):
        return
    world, ranks = num_nodes * gpus_per_node, layout_mesh(layout).without("dp").world_size
    if world % ranks:
        raise InputError.of(
            "world",
            f"{num_nodes} nodes x {gpus_per_node} = {world} ranks are not a multiple of tensor {tensor} x pipeline "
            f"{pipeline} = {ranks}",
            rule=WORLD_RULE,
            fix="in the file, correct the model parallel sizes, the nodes or the processes of a node",
        )
    layout["num_nodes"] = num_nodes
    _add(layout, "data_parallel", world // ranks, WORLD_RULE)


def _add_factor(layout: dict[str, Any], batch: int | None) -> None:
    """Add the micro-batch or the data-parallel ranks where the accumulation and the other one are known."""
    names = ("grad_accum_steps", "micro_batch_size", "data_parallel")
    missing = [name for name in names if not layout.get(name)]
    part = prod(layout[name] for name in names if name not in missing)
    if batch is None or len(missing) != 1 or missing == ["grad_accum_steps"]:
        return
    if batch % part:
        raise _not_a_multiple(batch, part, " x ".join(name for name in names if name not in missing))
    layout[missing[0]] = batch // part


def _not_a_multiple(batch: int, part: int, factors: str) -> InputError:
    return InputError.of(
        "batch",
        f"global batch {batch} is not a multiple of {factors} = {part}",
        key="global_batch_size",
        value=batch,
        rule=BATCH_RULE,
        fix=f"a global batch that is a multiple of {part}, or another micro batch",
    )


def _add(layout: dict[str, Any], name: str, value: int, rule: str) -> None:
    stated = layout.setdefault(name, value)
    if stated != value:
        raise InputError.of(
            "contradiction",
            f"{name} is {stated} in the file, but {value} follows from its other numbers",
            key=name,
            rule=rule,
            fix="correct the batch sizes, or the ranks that the training is started with",
        )


def require_agreement(first: Mapping[str, Any], second: Mapping[str, Any], where: str) -> None:
    """InputError for a field that the two sources have with different values; `where` names the sources."""
    for name in (each for each in first if each in second):
        if None not in (first[name], second[name]) and first[name] != second[name]:
            raise InputError.of(
                "contradiction",
                f"{name} is {first[name]} and {second[name]} in {where}",
                key=name,
                rule="two sources of the same training agree",
                fix="write the same value in both",
            )
