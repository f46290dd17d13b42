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
    name: str
    cells: tuple[RankCell, ...]


@dataclass(frozen=True)
class RankPlacement:
    """Cells of the first nodes, and the number of nodes omitted."""

    summary: str
    nodes: tuple[Node, ...]
    omitted: str | None


def rank_placement(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> RankPlacement:
    """Place ranks node by node, in the order in which launchers number them."""
    count = -(-layout.num_gpus // gpus_per_node)
    nodes = tuple(_node(layout, gpus_per_node, node) for node in range(min(count, _MAX_NODES)))
    summary = _summary(layout, gpus_per_node, count, nodes_per_domain)
    return RankPlacement(summary, nodes, _describe_omitted(count - len(nodes)))


def _describe_omitted(count: int) -> str | None:
    return f"...and {count} more {'node' if count == 1 else 'nodes'} with the same pattern" if count else None


def _node(layout: Layout, gpus_per_node: int, node: int) -> Node:
    groups = tensor_groups_of(node, layout, gpus_per_node)
    cells = [_cell(layout, group) for group in groups[:_MAX_CELLS]]
    return Node(f"node {node}", tuple(cells))


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
