"""Workload: the model, the cluster and the batch, and the two products that every layout has to satisfy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import MODEL_DEGREES, OTHER_DEGREES, layout_mesh
from search_spaces.model_shape import ModelShape

Fields = Mapping[str, Any]
"""A layout's fields; derived ones may be missing."""


@dataclass(frozen=True)
class Workload:
    """The training task and the limits of the search.

    `global_batch_size` counts sequences per step. With `batch_is_free` grad_accum_steps is an axis and the global batch
    follows from it.
    """

    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    batch_is_free: bool = False
    allow_tensor_parallel_across_nodes: bool = False
    max_nodes: int | None = None

    def world_size(self, num_nodes: Any) -> Any:
        """World size on `num_nodes` nodes, a number or a column."""
        return num_nodes * self.cluster.gpus_per_node


WORLD_FIX = f"change {', '.join((*MODEL_DEGREES, *OTHER_DEGREES.values()))} or num_nodes"
BATCH_FIX = "use a micro_batch_size that divides global_batch_size / data_parallel"


def wrong_world(f: Fields, w: Workload) -> str | None:
    """Explanation of a wrong world size, None for a right one; a derived field that is not whole is None or missing."""
    nodes, gpus = f["num_nodes"], w.cluster.gpus_per_node
    if nodes > w.cluster.num_nodes:
        return f"num_nodes is {nodes}, but the cluster has {w.cluster.num_nodes}"
    mesh = layout_mesh(f)
    world = f"num_nodes {nodes} x gpus_per_node {gpus} = {w.world_size(nodes)}"
    others = (name for name in OTHER_DEGREES.values() if f.get(name, 1) > 1)
    given = " x ".join(f"{name} {f[name]}" for name in (*MODEL_DEGREES, *others))
    if data := f.get("data_parallel"):
        told = f"{given} x data_parallel {data} = {mesh.world_size} ranks, but the world size is {world}"
        return None if mesh.world_size == w.world_size(nodes) else told
    return f"{given} = {mesh.without('dp').world_size} does not divide the world size {world}"


def wrong_batch(f: Fields, w: Workload) -> str | None:
    """Explanation of a wrong global batch, None for a right one; a derived field that is not whole is None or
    missing."""
    sequences, steps = f["micro_batch_size"] * f["data_parallel"], f.get("grad_accum_steps")
    if steps and (w.batch_is_free or sequences * steps == w.global_batch_size):
        return None
    if steps:
        return (
            f"micro_batch_size {f['micro_batch_size']} x grad_accum_steps {steps} x data_parallel {f['data_parallel']}"
            f" = {sequences * steps}, but global_batch_size is {w.global_batch_size}"
        )
    return (
        f"micro_batch_size {f['micro_batch_size']} x data_parallel {f['data_parallel']} = {sequences} does not divide"
        f" global_batch_size {w.global_batch_size}"
    )
