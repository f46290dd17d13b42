"""Placement of a layout's ranks on nodes, for the report and the terminal: groups, and the roles on each node. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
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
_MAX_LINE_CELLS = 4
_MAX_LINES = 4
_MAX_NODES = 12
_MAX_CELLS = 16


@dataclass(frozen=True)
class RankCell:
    """Ranks of one tensor group on one node, and their roles. `shade` is 0 to 100, by the pipeline stage."""

    ranks: str
    roles: tuple[str, ...]
    shade: int


@dataclass(frozen=True)
class NodePattern:
    """First node of those with the same pattern: parts of the same tensor groups, of the same stages.

    `others` says how many more there are.
    """

    name: str
    cells: tuple[RankCell, ...]
    others: str | None


@dataclass(frozen=True)
class RankPlacement:
    """The groups along each axis as lines, a node of each pattern, and the number of patterns omitted."""

    groups: tuple[str, ...]
    nodes: tuple[NodePattern, ...]
    omitted: str | None


def rank_placement(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> RankPlacement:
    """Place ranks node by node, in the order in which launchers number them."""
    count = -(-layout.num_gpus // gpus_per_node)
    patterns: dict[tuple, list[int]] = {}
    for node in range(count):
        patterns.setdefault(_pattern(layout, gpus_per_node, node), []).append(node)
    nodes = tuple(_node(layout, gpus_per_node, alike) for alike in list(patterns.values())[:_MAX_NODES])
    omitted = len(patterns) - len(nodes)
    groups = tuple(_group_lines(layout, gpus_per_node, nodes_per_domain))
    return RankPlacement(groups, nodes, f"...and {plural(omitted, 'more pattern')}" if omitted else None)


def rank_lines(layout: Layout, gpus_per_node: int, nodes_per_domain: int = 1) -> list[str]:
    """The same as lines for a terminal, with the first nodes; long lists are shortened."""
    placed = rank_placement(layout, gpus_per_node, nodes_per_domain)
    nodes = [*map(_node_line, placed.nodes[:_MAX_LINES])]
    omitted = [placed.omitted] if len(placed.nodes) <= _MAX_LINES else ["...and nodes of other patterns"]
    return [*placed.groups, *nodes, *filter(None, omitted)]


def nodes_per_domain(cluster: Mapping[str, Any], layout: Layout) -> int:
    """Nodes of the layout's job in one link domain of a search's recorded cluster; 1 where the record lacks fields."""
    try:
        return Cluster.from_json(cluster).nodes_per_domain(layout.num_nodes)
    except ValueError:
        return 1


def _pattern(layout: Layout, gpus_per_node: int, node: int) -> tuple[tuple[int, int], ...]:
    """Stage and place in its tensor group of each rank of a node."""
    places = map(layout.mesh.coordinates, _ranks_of(node, layout, gpus_per_node))
    return tuple((at["pp"], at["tp"]) for at in places)


def _ranks_of(node: int, layout: Layout, gpus_per_node: int) -> range:
    return range(node * gpus_per_node, min((node + 1) * gpus_per_node, layout.num_gpus))


def _node(layout: Layout, gpus_per_node: int, alike: Sequence[int]) -> NodePattern:
    ranks = _ranks_of(alike[0], layout, gpus_per_node)
    groups = [list(group) for _, group in groupby(ranks, key=lambda rank: layout.mesh.group(rank, "tp"))]
    cells = tuple(_cell(layout, group) for group in groups[:_MAX_CELLS])
    others = f"...and {plural(len(alike) - 1, 'more node')} with the same pattern" if len(alike) > 1 else None
    return NodePattern(f"node {alike[0]}", cells, others)


def _cell(layout: Layout, ranks: Sequence[int]) -> RankCell:
    stages, at = layout.pipeline_parallel, layout.mesh.coordinates(ranks[0])
    roles = [f"stage {at['pp']}"] if stages > 1 else []
    if layout.data_parallel > 1:
        roles.append(f"data {at['dp']}")
    if len(ranks) < layout.tensor_parallel:
        roles.append(f"tensor {_span(at['tp'], len(ranks))} of {layout.tensor_parallel}")
    span = f"{'rank' if len(ranks) == 1 else 'ranks'} {_span(ranks[0], len(ranks))}"
    return RankCell(span, tuple(roles or ["the model"]), round(8 + 47 * at["pp"] / max(1, stages - 1)))


def _node_line(node: NodePattern) -> str:
    cells = _shorten(node.cells, _MAX_LINE_CELLS, lambda cell: f"{cell.ranks} {' '.join(cell.roles)}")
    others = "" if node.others is None else f" {node.others}"
    return f"{node.name:<9} {' | '.join(cells)}{others}"


def _group_lines(layout: Layout, gpus_per_node: int, nodes_per_domain: int) -> Iterator[str]:
    meshes = list(_meshes(layout))
    width = max(9, *(len(name) for name, _, _ in meshes))
    for name, mesh, dim in meshes:
        groups, name = mesh.groups(dim), name.ljust(width)
        if len(groups[0]) == 1:
            yield f"{name} every rank alone"
            continue
        nodes, domains = (_most_blocks(groups, gpus_per_node * count) for count in (1, nodes_per_domain))
        where = "inside a node" if nodes == 1 else f"each over {nodes} nodes"
        if nodes > 1 and nodes_per_domain > 1:
            where += f" of {'one link domain' if domains == 1 else f'{domains} link domains'}"
        members = " | ".join(_shorten(groups, _MAX_GROUPS, _members))
        yield f"{name} {plural(len(groups), 'group')} of {len(groups[0])}, {where}: {members}"


def _meshes(layout: Layout) -> Iterator[tuple[str, RankMesh, str]]:
    """Kinds of groups, each with the mesh and the dimension along which they are."""
    yield "tensor", layout.mesh, "tp"
    if layout.context_parallel > 1:
        yield "context", layout.mesh, "cp"
    if layout.expert_parallel > 1:
        yield "expert", expert_mesh(layout, layout.rank_order), "ep"
    yield "data", layout.mesh, "dp"
    if layout.expert_parallel > 1:
        yield "copies of experts", expert_mesh(layout, layout.rank_order), "dp"
    yield "pipeline", layout.mesh, "pp"


def _most_blocks(groups: Sequence[Sequence[int]], ranks: int) -> int:
    """Blocks of so many ranks that the most spread group is in."""
    return max(len({rank // ranks for rank in group}) for group in groups)


def _members(group: Sequence[int]) -> str:
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
