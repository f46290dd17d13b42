"""The nodes of a fabric check, what follows from it for a search, and its findings."""

from __future__ import annotations

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.diagnostics.doctor.finding import Level
from orchestrator.diagnostics.fabric import conclude, fabric_cluster, fabric_program, findings_of
from orchestrator.planning.candidates import candidates_of
from search_spaces.decoding import decode
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Links
from tests.trials.diagnostics.test_fabric_findings import LINKS, cluster, slow_at, times
from trials.diagnostics.fabric_findings import judge

SEARCH = """\
name: mine
model: gpt2-tiny
cluster: {accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 8}
global_batch_size: 64
space: {tensor_parallel: [1, 2], num_nodes: [2, 8]}
launcher: {kind: slurm, fabric_check: true}
"""


def spec_of(folder, *sets):
    path = folder / "mine.yaml"
    path.write_text(SEARCH)
    return load_search_file(path, sets)


@pytest.mark.parametrize(
    ("sets", "nodes"),
    [([], 8), (["launcher.kind=slurm_pilot", "launcher.slurm.pilot_nodes=8"], 8), (["launcher.kind=slurm_pilot"], 8)],
)
def test_all_nodes_that_trials_may_get_are_checked(tmp_path, sets, nodes):
    assert fabric_cluster(spec_of(tmp_path, *sets)).num_nodes == nodes


def test_a_search_checks_the_shapes_of_its_layouts_where_it_asks_for_it(tmp_path):
    spec = spec_of(tmp_path)
    program = fabric_program(spec, candidates_of(spec).layouts)
    assert program.cluster.num_gpus == 32
    assert {(shape["num_ranks"], shape["stride"]) for shape in program.trainer["shapes"]} >= {(2, 1), (8, 1), (32, 1)}
    assert fabric_program(spec_of(tmp_path, "launcher.fabric_check=false"), ()) is None


def test_slow_nodes_are_avoided_and_links_are_those_of_the_others():
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), 9)
    assert (found["slow_nodes"], found["num_available"]) == (["n2"], 9)
    links = decode(Links, found["links"])
    assert links.domains[0].bus_gb_per_s == pytest.approx(200.0)
    assert dict(links.fabric.by_nodes)[2] == pytest.approx(90.0)
    assert found["findings"][0].startswith("n2 is slow")


def test_a_slow_rank_of_a_single_node_is_told_and_nothing_is_avoided():
    found = conclude(times(1, lambda exchange, ranks: 0.2 if 3 in ranks else 1.0), cluster(1), cluster(1), 1)
    assert found["slow_nodes"] == []
    assert found["findings"][0].startswith("rank 3 is slow")


def test_where_the_launcher_cannot_avoid_a_node_its_links_are_measured_with_it():
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), None)
    assert (found["slow_nodes"], found["findings"][0][:10]) == ([], "n2 is slow")
    assert dict(decode(Links, found["links"]).fabric.by_nodes)[2] == pytest.approx(27.0)


def test_a_simulated_launcher_has_nothing_to_check(tmp_path):
    with pytest.raises(InputError) as caught:
        spec_of(tmp_path, "launcher={kind: simulated, table: measured.csv, fabric_check: true}")
    problem = next(p for p in caught.value.problems if p.key == "launcher.fabric_check")
    assert problem.message == "is true, but kind simulated runs nothing"


def test_one_node_says_nothing_about_what_joins_it():
    one = times(1, lambda exchange, ranks: 0.5)
    links = decode(Links, conclude(one, cluster(1), cluster(4), 4)["links"])
    assert links.domains[0].bus_gb_per_s == pytest.approx(100.0)
    assert links.fabric == LINKS.fabric
    unknown = Cluster(ACCELERATORS["cpu"], 4, 4)
    assert conclude(one, Cluster(ACCELERATORS["cpu"], 4, 1), unknown, 4)["links"] is None


def test_the_doctor_warns_of_slow_nodes_and_of_slow_shapes():
    found = list(findings_of(judge(times(4, slow_at(2)), cluster(4)), cluster(4)))
    assert [(f.name, f.level) for f in found][:1] == [("slow_nodes", Level.WARNING)]
    fine = list(findings_of(judge(times(4, slow_at()), cluster(4)), cluster(4)))
    assert [(f.name, f.level) for f in fine] == [("slow_nodes", Level.OK), ("group_bandwidth", Level.OK)]
