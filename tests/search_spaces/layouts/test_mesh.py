"""Ranks, groups and neighbours of meshes, also of dimensions that layouts do not have yet."""

from __future__ import annotations

import ast
from itertools import product

import pytest

from search_spaces.layouts.layout import CHOICES, DEGREES, Layout
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.table import LayoutTable
from tests.sources import ROOT, modules, parsed

TWELVE = {"tp": 2, "dp": 2, "pp": 3}
INNER_DATA = RankMesh.ordered("tp-dp-pp", TWELVE)
OUTER_DATA = RankMesh.ordered("tp-pp-dp", TWELVE)

# Sixteen ranks as Megatron numbers them (megatron/core/parallel_state.py, order tp-cp-ep-dp-pp): the dense layers' mesh
# without ep, the experts' without cp.
DENSE = RankMesh.ordered("tp-cp-dp-pp", {"tp": 2, "cp": 2, "dp": 2, "pp": 2})
EXPERTS = RankMesh.ordered("tp-ep-dp-pp", {"tp": 1, "ep": 4, "dp": 2, "pp": 2})
REPLICATED = RankMesh.ordered(
    "tp-cp-dp_shard-dp_replicate-pp", {"tp": 1, "cp": 2, "dp_shard": 2, "dp_replicate": 2, "pp": 1}
)


@pytest.mark.parametrize(
    ("mesh", "dims", "groups"),
    [
        (INNER_DATA, ["dp"], [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11]]),
        (OUTER_DATA, ["pp"], [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]),
        (OUTER_DATA, ["tp", "dp"], [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]),
        (DENSE, ["dp", "cp"], [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]),
        (EXPERTS, ["ep"], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
        (EXPERTS, ["dp"], [[0, 4], [1, 5], [2, 6], [3, 7], [8, 12], [9, 13], [10, 14], [11, 15]]),
        (REPLICATED, ["cp", "dp_shard"], [[0, 1, 2, 3], [4, 5, 6, 7]]),
    ],
)
def test_groups_along_dimensions(mesh: RankMesh, dims: list[str], groups: list[list[int]]):
    assert mesh.groups(*dims) == groups
    assert all(mesh.group(rank, *dims) == group for group in groups for rank in group)


def test_a_dimension_without_a_place_in_the_order_is_refused():
    with pytest.raises(ValueError, match="tp-dp-pp has no place for cp"):
        RankMesh.ordered("tp-dp-pp", {**TWELVE, "cp": 2})


def test_coordinates_count_the_innermost_dimension_first_and_only_an_inner_stage_has_two_neighbours():
    assert INNER_DATA.coordinates(7) == {"tp": 1, "dp": 1, "pp": 1}
    assert OUTER_DATA.coordinates(7) == {"tp": 1, "pp": 0, "dp": 1}
    assert INNER_DATA.rank(pp=2) == 8
    for mesh in (INNER_DATA, OUTER_DATA, DENSE, EXPERTS):
        ranks = range(mesh.world_size)
        assert [mesh.rank(**mesh.coordinates(rank)) for rank in ranks] == [*ranks]
    assert [OUTER_DATA.neighbours(rank, "pp") for rank in (6, 8, 10)] == [(None, 8), (6, 10), (8, None)]


def test_a_group_crosses_nodes_where_its_ranks_are_on_two():
    degrees = [dict(zip(DEGREES.values(), sizes, strict=True)) for sizes in product((1, 2, 3, 4), repeat=3)]
    layouts = [Layout(rank_order=order, **given) for order in CHOICES["rank_order"] for given in degrees]
    for ranks_per_node in (4, 6):
        full = [layout for layout in layouts if layout.num_gpus % ranks_per_node == 0]
        for dim in DEGREES:
            expected = [
                any(len({rank // ranks_per_node for rank in group}) > 1 for group in layout.mesh.groups(dim))
                for layout in full
            ]
            assert [layout.mesh.crosses_nodes(dim, ranks_per_node) for layout in full] == expected
            assert LayoutTable.of(full).per_mesh(RankMesh.crosses_nodes, dim, ranks_per_node).tolist() == expected


def test_no_other_module_multiplies_parallel_degrees():
    benchmarks = (str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").glob("*.py"))
    found = [
        f"{module}:{node.lineno}"
        for module in {*modules(), *benchmarks} - {"search_spaces/layouts/mesh.py"}
        if "_parallel" in (ROOT / module).read_text(encoding="utf-8")
        for node in parsed(module)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and len(_degrees_in(node)) > 1
    ]
    assert found == []


def _degrees_in(expression: ast.expr) -> set[str]:
    """Degrees that an expression names, as a field or as a variable after it."""
    nodes = ast.walk(expression)
    names = {getattr(node, key, None) for node in nodes for key in ("attr", "id", "value")}
    return {degree for degree in DEGREES.values() if {degree, degree.removesuffix("_parallel")} & names}
