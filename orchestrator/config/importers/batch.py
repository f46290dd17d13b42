"""Batch and ranks of an imported layout: what follows from the numbers that a file has, and whether they agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE, layout_mesh

_FACTORS = ("grad_accum_steps", "micro_batch_size", "data_parallel")


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
    known = {name: layout[name] for name in _FACTORS if layout.get(name)}
    missing = [name for name in _FACTORS if name not in known]
    part = prod(known.values())
    if batch is None:
        if missing not in ([], ["grad_accum_steps"]) or {"global_batch_size", "grad_accum_steps"} & {*in_doubt}:
            return None
        batch = part
    if (len(missing) == 1 and batch % part) or (not missing and batch != part):
        factors = " x ".join(f"{name} {value}" for name, value in known.items())
        multiple = "a multiple of " if missing else ""
        raise InputError.of(
            "batch",
            f"global batch {batch} is not {multiple}{factors} = {part}",
            key="global_batch_size",
            value=batch,
            rule=BATCH_RULE,
            fix=f"a global batch of {multiple}{part}, or another micro batch or number of ranks",
        )
    if len(missing) == 1:
        layout[missing[0]] = batch // part
    return batch


def _add_data_parallel(layout: dict[str, Any], num_nodes: int | None, gpus_per_node: int | None) -> None:
    tensor, pipeline = layout.get("tensor_parallel"), layout.get("pipeline_parallel")
    if not (num_nodes and gpus_per_node and tensor and pipeline):
        return
    world, ranks = num_nodes * gpus_per_node, layout_mesh(layout).without("dp").world_size
    layout["num_nodes"] = num_nodes
    data = layout.setdefault("data_parallel", world // ranks)
    if world != ranks * data:
        whole = f"a multiple of tensor {tensor} x pipeline {pipeline} = {ranks}"
        if world % ranks == 0:
            whole = f"tensor {tensor} x pipeline {pipeline} x data {data} = {ranks * data}"
        raise InputError.of(
            "world",
            f"{num_nodes} nodes x {gpus_per_node} = {world} ranks are not {whole}",
            rule=WORLD_RULE,
            fix="in the file, correct the parallel sizes, the nodes or the processes of a node",
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
