"""Placement of the best layout's ranks on nodes, with the stage of each tensor group. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.terminal.rank_diagram import tensor_groups_of
from search_spaces.layouts.groups import leaving_words
from search_spaces.layouts.layout import Layout
from trials.files.text import plural

_MAX_NODES = 12
_MAX_CELLS = 16


@dataclass(frozen=True)
class RankCell:
    """Ranks of one tensor group on one node, with their pipeline stage and data-parallel index.

    `data` is None without data parallelism. `shade` is 0 to 100, by the stage.
    """

    stage: str
    data: str | None
    ranks: str
    shade: int


@dataclass(frozen=True)
class Node:
    """Node, with the number of others that hold the same stages, and the first of them."""

    name: str
    cells: tuple[RankCell, ...]
    alike: str | None


@dataclass(frozen=True)
class RankPlacement:
    """One node of each pattern of stages, and the number of patterns omitted."""

    summary: str
    nodes: tuple[Node, ...]
    omitted: str | None


def rank_placement(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> RankPlacement:
    """Place ranks node by node, in the order in which launchers number them."""
    count = -(-layout.num_gpus // gpus_per_node)
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for node in range(count):
        groups = tensor_groups_of(node, layout, gpus_per_node)
        pattern = tuple((layout.mesh.coordinates(group[0])["pp"], len(group)) for group in groups)
        alike.setdefault(pattern, []).append(node)
    nodes = tuple(_node(layout, gpus_per_node, group) for group in list(alike.values())[:_MAX_NODES])
    summary = _summary(layout, gpus_per_node, count, nodes_per_domain)
    return RankPlacement(summary, nodes, _describe_omitted(len(alike) - len(nodes)))


def _describe_omitted(count: int) -> str | None:
    return f"...and {plural(count, 'other pattern')} of stages" if count else None


def _node(layout: Layout, gpus_per_node: int, group: Sequence[int]) -> Node:
    """The first node of a group of nodes with the same stages."""
    more = len(group) - 1
    alike = f"and {plural(more, 'more node')} like it, from node {group[1]} on" if more else None
    return Node(f"node {group[0]}", tuple(_cells(layout, gpus_per_node, group[0])), alike)


def _cells(layout: Layout, gpus_per_node: int, node: int) -> list[RankCell]:
    return [_cell(layout, group) for group in tensor_groups_of(node, layout, gpus_per_node)[:_MAX_CELLS]]


def _cell(layout: Layout, ranks: Sequence[int]) -> RankCell:
    stages, at = layout.pipeline_parallel, layout.mesh.coordinates(ranks[0])
    stage = at["pp"]
    data = f"data {at['dp']}" if layout.data_parallel > 1 else None
    words = f"stage {stage}" if stages > 1 else data or "the model"
    span = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"
    return RankCell(words, data if stages > 1 else None, span, round(8 + 47 * stage / max(1, stages - 1)))


def _summary(layout: Layout, gpus_per_node: int, count: int, nodes_per_domain: int) -> str:
    crosses_nodes = count > 1 and layout.mesh.crosses_nodes("tp", gpus_per_node)
    leaves_domain = layout.mesh.crosses_nodes("tp", gpus_per_node * nodes_per_domain)
    across = "across nodes" if leaves_domain else "across nodes of one link domain"
    inside = across if crosses_nodes else "inside a node"
    tensor = f"tensor groups of {layout.tensor_parallel} {inside}" if layout.tensor_parallel > 1 else "no tensor groups"
    stages = plural(layout.pipeline_parallel, "stage") if layout.pipeline_parallel > 1 else "no stages"
    copies = plural(layout.data_parallel, "copy") if layout.data_parallel == 1 else f"{layout.data_parallel} copies"
    what = f"{plural(layout.num_gpus, 'rank')} on {plural(count, 'node')}: {tensor}, {stages}, {copies} of the model."
    return what + _describe_leaving(layout, gpus_per_node * nodes_per_domain, count > nodes_per_domain > 1)


def _describe_leaving(layout: Layout, ranks_per_domain: int, has_domains: bool) -> str:
    """The groups that leave the link domains of a job in several."""
    return f" Groups in several link domains: {leaving_words(layout, ranks_per_domain)}." if has_domains else ""
