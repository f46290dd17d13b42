"""Workload: what is trained on what, and the two products every layout must come out to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import OWN_ENGINES
from search_spaces.model_shape import ModelShape

Fields = Mapping[str, Any]
"""A layout's fields, of which the derived ones may be missing."""


@dataclass(frozen=True)
class Workload:
    """What is to be trained on what, and what the search allows.

    `global_batch_size` counts sequences per step. With `batch_is_free` accumulation is an axis of its own and the
    global batch follows from it. `engines` are those of the trainer that is to run.
    """

    model: ModelShape
    cluster: Cluster
    global_batch_size: int
    batch_is_free: bool = False
    allow_tensor_parallel_across_nodes: bool = False
    max_nodes: int | None = None
    engines: tuple[str, ...] = OWN_ENGINES

    def world(self, num_nodes: Any) -> Any:
        """Ranks on so many nodes, for a number or a column."""
        return num_nodes * self.cluster.gpus_per_node


WORLD_FIX = "change tensor_parallel, pipeline_parallel or num_nodes"
BATCH_FIX = "use a micro_batch_size that divides global_batch_size / data_parallel"


def describe_world_size(f: Fields, w: Workload) -> str:
    """Why these ranks are not the world; a derived field that is no whole number is None or missing."""
    nodes, gpus = f["num_nodes"], w.cluster.gpus_per_node
    if nodes > w.cluster.num_nodes:
        return f"{nodes} nodes are asked for, the cluster has {w.cluster.num_nodes}"
    ranks = f["tensor_parallel"] * f["pipeline_parallel"]
    if data := f.get("data_parallel"):
        return (
            f"tensor {f['tensor_parallel']} x pipeline {f['pipeline_parallel']} x data {data} = {ranks * data} ranks,"
            f" but num_nodes {nodes} x gpus_per_node {gpus} = {w.world(nodes)}"
        )
    return (
        f"tensor {f['tensor_parallel']} x pipeline {f['pipeline_parallel']} = {ranks} ranks do not divide"
        f" the world: num_nodes {nodes} x gpus_per_node {gpus} = {w.world(nodes)}"
    )


def describe_batch_size(f: Fields, w: Workload) -> str:
    """Why this is not the global batch; a derived field that is no whole number is None or missing."""
    sequences = f["micro_batch_size"] * f["data_parallel"]
    if steps := f.get("grad_accum_steps"):
        return (
            f"micro batch {f['micro_batch_size']} x accumulation {steps} x data {f['data_parallel']}"
            f" = {sequences * steps} sequences, but global_batch_size is {w.global_batch_size}"
        )
    return (
        f"micro batch {f['micro_batch_size']} x data {f['data_parallel']} = {sequences} sequences do not divide"
        f" the global batch {w.global_batch_size}"
    )
