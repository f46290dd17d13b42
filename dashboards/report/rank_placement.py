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
    """First node of those with the same pattern: parts of the same tensor groups, of the same stages.

    `others` says how many more there are.
    """

    name: str
    cells: tuple[RankCell, ...]
    others: str | None


@dataclass(frozen=True)
class RankPlacement:
    """A node of each pattern, and the number of patterns omitted."""

    summary: str
    nodes: tuple[Node, ...]
    omitted: str | None


def rank_placement(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> RankPlacement:
    """Place ranks node by node, in the order in which launchers number them."""
    count = -(-layout.num_gpus // gpus_per_node)
    patterns: dict[tuple, list[int]] = {}
    for node in range(count):
        patterns.setdefault(_pattern(layout, gpus_per_node, node), []).append(node)
    shown = list(patterns.values())[:_MAX_NODES]
    nodes = tuple(_node(layout, gpus_per_node, alike) for alike in shown)
    omitted = len(patterns) - len(shown)
    summary = _summary(layout, gpus_per_node, count, nodes_per_domain)
    return RankPlacement(summary, nodes, f"...and {plural(omitted, 'more pattern')}" if omitted else None)


def _pattern(layout: Layout, gpus_per_node: int, node: int) -> tuple[tuple[int, int], ...]:
    """Stage and place in its tensor group of each rank of a node."""
    first = node * gpus_per_node
    places = map(layout.mesh.coordinates, range(first, min(first + gpus_per_node, layout.num_gpus)))
    return tuple((at["pp"], at["tp"]) for at in places)


def _node(layout: Layout, gpus_per_node: int, alike: Sequence[int]) -> Node:
    groups = tensor_groups_of(alike[0], layout, gpus_per_node)
    cells = [_cell(layout, group) for group in groups[:_MAX_CELLS]]
    others = f"...and {plural(len(alike) - 1, 'more node')} with the same pattern" if len(alike) > 1 else None
    return Node(f"node {alike[0]}", tuple(cells), others)


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
