"""Ranks, groups and neighbours of meshes, and groups against link domains, by brute force and by hand."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import product

import pytest

from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.groups import GROUP_NAMES, expert_mesh, group_names, leaving_groups, rank_groups
from search_spaces.layouts.layout import CHOICES, DEGREES, Layout
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.placement import leaves_domain, table_groups
from search_spaces.layouts.table import LayoutTable
from tests.sources import ROOT, modules, parsed
from tests.trials.train.parity import needs_megatron

RACKS = Links((LinkDomain("node", 2, 90, 6), LinkDomain("rack", 8, 90, 9)), Fabric(20, 5))
NVL72 = Links((LinkDomain("node", 4, 700, 20), LinkDomain("nvl72", 72, 700, 25)), Fabric(200, 20))
FIELDS = (
    *("tensor_parallel", "context_parallel", "pipeline_parallel", "data_parallel"),
    *("data_parallel_replicas", "expert_parallel", "expert_tensor_parallel"),
)


def every_layout(num_nodes: int, gpus_per_node: int) -> list[Layout]:
    """Layouts of both orders with every split of the ranks over the dimensions, replicas and experts."""
    sizes = (1, 2, 3, 4, 8)
    found = []
    for values in product(sizes, (1, 2), sizes, sizes, (1, 2), (1, 2, 4), (1, 2)):
        tensor, context, stages, data, replicas, expert, of_expert = values
        of_stage = tensor * context * data
        whole = data % replicas == 0 and of_stage // replicas % (expert * of_expert) == 0
        if of_stage * stages == num_nodes * gpus_per_node and whole and of_stage % replicas == 0:
            fields = dict(zip(FIELDS, values, strict=True))
            found += [Layout(num_nodes=num_nodes, rank_order=order, **fields) for order in CHOICES["rank_order"]]
    return [layout for layout in found if layout.canonical().rank_order == layout.rank_order]


def groups_by_hand(layout: Layout, name: str) -> list[list[int]]:
    """Groups as parallel_state.py makes them: ranks with all other coordinates alike, cut into replicas."""
    mesh, experts = layout.mesh, expert_mesh(layout, layout.rank_order)
    whole = mesh.groups("cp", "dp") if name in ("shards", "replicas") else experts.groups("dp")
    parts = layout.data_parallel_replicas
    cut = [[group[n * len(group) // parts :][: len(group) // parts] for n in range(parts)] for group in whole]
    if name in ("shards", "expert_shards"):
        return [part for of_group in cut for part in of_group]
    if name == "replicas":
        return [list(ranks) for of_group in cut for ranks in zip(*of_group, strict=True)]
    if name == "expert":
        return experts.groups("ep")
    return mesh.groups({"tensor": "tp", "context": "cp", "pipeline": "pp"}[name])


@pytest.mark.parametrize("links", [RACKS, None])
def test_a_group_leaves_its_domain_where_its_ranks_are_in_two(links: Links | None):
    cluster = Cluster(ACCELERATORS["cpu"], 2, 12, links)
    layouts = [layout for nodes in (1, 2, 3, 4, 6, 8, 12) for layout in every_layout(nodes, 2)]
    together = (
        dict.fromkeys((1, 2, 3, 4, 6, 8, 12), 1) if links is None else {1: 1, 2: 2, 3: 3, 4: 4, 6: 3, 8: 4, 12: 4}
    )
    for name in GROUP_NAMES:
        expected = [
            any(len({rank // (2 * together[each.num_nodes]) for rank in group}) > 1 for group in groups)
            for each in layouts
            for groups in [groups_by_hand(each, name)]
        ]
        assert leaves_domain(LayoutTable.of(layouts), name, cluster).tolist() == expected, name
    assert leaves_domain(LayoutTable.of(layouts[:0]), "tensor", cluster).tolist() == []


GB200 = (
    # 32 nodes are two parts of 16, of 64 ranks each
    (32, {"tensor_parallel": 4, "pipeline_parallel": 4, "data_parallel": 8}, {"pipeline"}, {"shards"}),
    (32, {"data_parallel": 128, "expert_parallel": 128}, {"shards", "expert"}, None),
    # 36 nodes are two parts of 18, of 72 ranks each
    (36, {"tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 18}, {"pipeline"}, {"shards"}),
    (36, {"tensor_parallel": 16, "data_parallel": 9}, {"tensor", "shards"}, None),
    (36, {"data_parallel": 144, "expert_parallel": 16}, {"shards", "expert", "expert_shards"}, None),
    # 24 nodes are two parts of 12, of 48 ranks each; 16 are one domain
    (24, {"context_parallel": 32, "data_parallel": 3}, {"context", "shards"}, None),
    (16, {"tensor_parallel": 4, "pipeline_parallel": 4, "data_parallel": 4}, set(), set()),
)
"""Nodes, fields of a layout, and the groups that leave an NVL72 in the orders tp-dp-pp and tp-pp-dp."""


@pytest.mark.parametrize(("nodes", "fields", "data_inside", "data_outside"), GB200)
def test_groups_leave_link_domains_of_18_nodes_by_the_order_of_the_ranks(nodes, fields, data_inside, data_outside):
    cluster = Cluster(ACCELERATORS["gb200-186gb"], 4, 72, NVL72)
    for order, expected in (("tp-dp-pp", data_inside), ("tp-pp-dp", data_outside)):
        if expected is not None:
            layout = Layout(num_nodes=nodes, rank_order=order, **fields)
            has_experts, table = "expert_parallel" in fields, LayoutTable.of([layout])
            leave = {name for name in group_names(has_experts) if leaves_domain(table, name, cluster)[0]}
            assert leave == expected, order
            assert {*leaving_groups(layout, has_experts, cluster.nodes_per_domain(nodes) * 4)} == expected


def test_segments_smaller_than_a_domain_are_the_domains_of_a_job():
    """Groups of 64 ranks are in two of 16 nodes' segments of 8, which --segment=8 asks for."""
    of_segments = Cluster(ACCELERATORS["gb200-186gb"], 4, 72, NVL72.for_job(8, 4))
    table = LayoutTable.of([Layout(num_nodes=16, tensor_parallel=4, pipeline_parallel=2, data_parallel=8)])
    assert not leaves_domain(table, "shards", of_segments)[0]
    assert leaves_domain(table, "pipeline", of_segments)[0]
    assert not leaves_domain(table, "pipeline", replace(of_segments, given_links=NVL72))[0]


@needs_megatron
@pytest.mark.slow
def test_groups_are_those_of_megatron():
    from megatron.core.parallel_state import RankGenerator

    for layout in every_layout(12, 2):
        order = layout.rank_order.replace("tp-", "tp-cp-ep-")
        experts = expert_mesh(layout, layout.rank_order)
        dense = RankGenerator(
            layout.tensor_parallel, 1, layout.data_parallel, layout.pipeline_parallel, layout.context_parallel, order
        )
        sparse = RankGenerator(
            layout.expert_tensor_parallel,
            layout.expert_parallel,
            experts.sizes["dp"],
            layout.pipeline_parallel,
            1,
            order,
        )
        assert sorted(dense.get_ranks("dp-cp")) == sorted(layout.mesh.groups("dp", "cp"))
        for dim in ("tp", "cp", "pp"):
            assert sorted(dense.get_ranks(dim)) == sorted(layout.mesh.groups(dim))
        for dim in ("tp", "ep", "dp", "pp"):
            assert sorted(sparse.get_ranks(dim)) == sorted(experts.groups(dim))


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
        for dim, name in {"tp": "tensor", "dp": "shards", "pp": "pipeline"}.items():
            expected = [
                any(len({rank // ranks_per_node for rank in group}) > 1 for group in layout.mesh.groups(dim))
                for layout in full
            ]
            groups = [rank_groups(name, layout, layout.rank_order) for layout in full]
            assert [each.leave(ranks_per_node) for each in groups] == expected
            assert table_groups(LayoutTable.of(full), name).leave(ranks_per_node).tolist() == expected


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
