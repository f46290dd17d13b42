"""Text diagram of a layout: rank groups along each axis, and the ranks of each node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, zip_longest
from typing import Any, TypeVar

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.groups import expert_mesh
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.mesh import RankMesh
from trials.files.text import plural

T = TypeVar("T")

_MAX_MEMBERS = 4
"""Largest group whose ranks are all listed; of a larger one the first three and the last are."""
_MAX_GROUPS = 4
_MAX_NODES = 4
_MAX_LINES = 8
_WIDTH = 100


def rank_diagram(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> list[str]:
    """Lines for a terminal: the groups along each axis, and the nodes as boxes; long lists are shortened."""
    return [*_group_lines(layout, gpus_per_node, nodes_per_domain), *_node_lines(layout, gpus_per_node)]


def nodes_per_domain(cluster: Mapping[str, Any], layout: Layout) -> int:
    """Nodes of the layout's job in one link domain of a search's recorded cluster; 1 where the record lacks fields."""
    try:
        return Cluster.from_json(cluster).nodes_per_domain(layout.num_nodes)
    except ValueError:
        return 1


def tensor_groups_of(node: int, layout: Layout, gpus_per_node: int) -> list[list[int]]:
    """Ranks of a node by tensor group."""
    first = node * gpus_per_node
    ranks = range(first, min(first + gpus_per_node, layout.num_gpus))
    return [list(group) for _, group in groupby(ranks, key=lambda rank: layout.mesh.group(rank, "tp"))]


def _group_lines(layout: Layout, gpus_per_node: int, nodes_per_domain: int) -> Iterator[str]:
    for name, mesh, dim in _meshes(layout):
        groups = mesh.groups(dim)
        if len(groups[0]) == 1:
            yield f"{name:<9} every rank alone"
            continue
        nodes, domains = (_most_blocks(groups, gpus_per_node * count) for count in (1, nodes_per_domain))
        where = "inside a node" if nodes == 1 else f"each over {nodes} nodes"
        if nodes > 1 and nodes_per_domain > 1:
            where += f" of {'one link domain' if domains == 1 else f'{domains} link domains'}"
        count = plural(len(groups), "group")
        members = " | ".join(_shorten(groups, _MAX_GROUPS, _ranks))
        yield f"{name:<9} {count} of {len(groups[0])}, {where}: {members}"


def _meshes(layout: Layout) -> Iterator[tuple[str, RankMesh, str]]:
    """Kinds of groups, each with the mesh and the dimension along which they are."""
    yield "tensor", layout.mesh, "tp"
    if layout.context_parallel > 1:
        yield "context", layout.mesh, "cp"
    if layout.expert_parallel > 1:
        yield "expert", expert_mesh(layout, layout.rank_order), "ep"
    yield "data", layout.mesh, "dp"
    yield "pipeline", layout.mesh, "pp"


def _most_blocks(groups: Sequence[Sequence[int]], ranks: int) -> int:
    """Blocks of so many ranks that the most spread group is in."""
    return max(len({rank // ranks for rank in group}) for group in groups)


def _node_lines(layout: Layout, gpus_per_node: int) -> Iterator[str]:
    nodes = -(-layout.num_gpus // gpus_per_node)
    shown = list(range(nodes)) if nodes <= _MAX_NODES else [0, 1, nodes - 1]
    boxes = [_box(layout, gpus_per_node, node) for node in shown]
    if nodes > _MAX_NODES:
        yield from _side_by_side(boxes[:-1])
        yield f"  ... {nodes - len(shown)} more nodes ..."
        yield from _side_by_side(boxes[-1:])
    else:
        yield from _side_by_side(boxes)


def _box(layout: Layout, gpus_per_node: int, node: int) -> list[str]:
    rows = _shorten(tensor_groups_of(node, layout, gpus_per_node), _MAX_LINES, partial(_cell, layout))
    width = max(len(row) for row in (*rows, f"node {node}"))
    edge = f"+{'-' * (width + 2)}+"
    title = f"+ node {node} ".ljust(width + 3, "-") + "+"
    return [title, *(f"| {row:<{width}} |" for row in rows), edge]


def _cell(layout: Layout, ranks: Sequence[int]) -> str:
    """Role of those ranks of a tensor group that are on one node."""
    parts, at = [], layout.mesh.coordinates(ranks[0])
    if layout.pipeline_parallel > 1:
        parts.append(f"stage {at['pp']}")
    if layout.data_parallel > 1:
        parts.append(f"data {at['dp']}")
    if len(ranks) < layout.tensor_parallel:
        share = _span(at["tp"], len(ranks))
        parts.append(f"tensor {share} of {layout.tensor_parallel}")
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {_span(ranks[0], len(ranks))}: {', '.join(parts) or 'the whole model'}"


def _side_by_side(boxes: Sequence[list[str]]) -> Iterator[str]:
    """Rows of boxes, as many in a row as fit."""
    row: list[list[str]] = []
    for box in boxes:
        if row and sum(len(other[0]) + 2 for other in (*row, box)) > _WIDTH:
            yield from _join_boxes(row)
            row = []
        row.append(box)
    yield from _join_boxes(row)


def _join_boxes(boxes: Sequence[list[str]]) -> Iterator[str]:
    widths = [len(box[0]) for box in boxes]
    for lines in zip_longest(*boxes, fillvalue=""):
        yield "  ".join(f"{line:<{width}}" for line, width in zip(lines, widths, strict=True)).rstrip()


def _ranks(group: Sequence[int]) -> str:
    if group[-1] - group[0] == len(group) - 1:
        return _span(group[0], len(group))
    if len(group) <= _MAX_MEMBERS:
        return " ".join(map(str, group))
    return f"{group[0]} {group[1]} {group[2]} ... {group[-1]}"


def _span(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _shorten(items: Sequence[T], limit: int, text: Callable[[T], str]) -> list[str]:
    """Text of all items, or of the first ones and the last."""
    if len(items) <= limit:
        return list(map(text, items))
    return [*map(text, items[: limit - 2]), "...", text(items[-1])]
