"""Selftest and fabric check: their nodes, cases and messages, what follows for a search, and the record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.diagnostics.doctor.finding import Level
from orchestrator.diagnostics.fabric import conclude, fabric_program, findings_of
from orchestrator.diagnostics.selftest import (
    SelftestReport,
    cases_for,
    record_result,
    selftest,
    selftest_cluster,
)
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import Launcher, LaunchRequest
from orchestrator.planning.candidates import candidates_of
from orchestrator.schema.launcher import LauncherSection
from search_spaces.decoding import decode
from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Links
from tests.kit import MINIMAL, loaded
from tests.orchestrator.scripted import ScriptedLauncher, one_job
from tests.trials.diagnostics.test_fabric_findings import LINKS, cluster, slow_at, times
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.fabric_findings import judge
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import CaseResult, Results, read_cases
from trials.files.folders import SearchFolder, read_json

CPU, H100 = ACCELERATORS["cpu"], ACCELERATORS["h100-80gb"]
PAIR = Cluster(CPU, 2, 1)
CASES = [named_case("one"), named_case("two", data_parallel=2)]
GOOD = [CaseResult(case.name, case.layout.num_gpus, True, 1e-7, 1e-5, 1.0) for case in CASES]


def launcher_of(results: list[CaseResult], status: LaunchStatus) -> ScriptedLauncher:
    """Launcher whose attempt has one more result at each poll, until it ends with `status`."""

    def leave(request: LaunchRequest, number: int) -> None:
        Results(tuple(results[:number]), {"torch": "2.13.0"}).write(request.folder.path)

    return one_job(status, leave, lasts=len(results))


def run(tmp_path: Path, launcher: Launcher, on_result=lambda result: None) -> SelftestReport:
    folder = SearchFolder(tmp_path / "selftest-abc123")
    return selftest(AttemptRunner(launcher), folder, PAIR, CASES, sys.executable, on_result)


@pytest.mark.parametrize(
    ("gpus_per_node", "num_nodes", "per_node", "nodes"),
    [(16, 1, 8, 1), (4, 1, 4, 1), (8, 16, 4, 2), (2, 8, 2, 4), (1, 3, 1, 3)],
)
def test_a_selftest_takes_up_to_eight_ranks_and_two_nodes_where_there_are(gpus_per_node, num_nodes, per_node, nodes):
    cluster = selftest_cluster(Cluster(H100, gpus_per_node, num_nodes))
    assert (cluster.gpus_per_node, cluster.num_nodes) == (per_node, nodes)


@pytest.mark.slow
def test_the_cases_fit_the_world_and_end_with_those_that_must_fail():
    cases = cases_for(PAIR)
    assert max(case.layout.num_gpus for case in cases) == 2
    assert [case.name for case in cases[-2:]] == ["gpu_oom", "hang"]
    assert [case.name for case in cases_for(PAIR, ["hang", "tied-zero3"])] == ["tied-zero3", "hang"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", [MEGATRON_CORE, TORCHTITAN])
def test_layouts_of_a_packages_engine_are_among_them_where_the_search_names_it(engine):
    native, mixed = cases_for(PAIR, engines=("torch", "deepspeed")), cases_for(PAIR, engines=("torch", engine))
    added = [case for case in mixed if case.layout.engine == engine]
    assert max(case.layout.num_gpus for case in added) == PAIR.num_gpus
    assert [case for case in mixed if case not in added] == native


def test_the_attempt_finds_its_cases_and_runs_the_selftests_program(tmp_path):
    launcher = launcher_of(GOOD, LaunchStatus(Liveness.ENDED, started=True))
    report = run(tmp_path, launcher)
    assert report.passed
    assert report.found == Results(tuple(GOOD), {"torch": "2.13.0"})
    [request] = launcher.requests
    assert request.argv[1:3] == ("-m", "trials.train.selftest")
    assert read_cases(request.folder.path) == CASES
    assert (Path(request.code) / "trials/train/selftest/program.py").exists()
    assert (request.spec.num_gpus, request.spec.num_nodes) == (2, 1)


def test_ranks_that_died_on_the_way_are_told_and_nothing_is_waited_for(tmp_path):
    launcher = launcher_of(
        GOOD[:1], LaunchStatus(Liveness.ENDED, started=True, failed=True, detail="rank 1 was killed")
    )
    report = run(tmp_path, launcher)
    assert not report.passed
    assert report.detail == "1 of 2 cases were run: rank 1 was killed"
    assert launcher.clock < 5.0


def test_the_last_selftest_of_each_accelerator_is_kept(tmp_path):
    passed = SelftestReport(tuple(CASES), Results(tuple(GOOD), {"torch": "2.13.0"}))
    failed = SelftestReport(tuple(CASES), Results((GOOD[0],)), "1 of 2 cases were run: killed")
    record_result(failed, "slurm", Cluster(H100, 4, 2), tmp_path)
    record_result(passed, "local", PAIR, tmp_path)
    record_result(passed, "slurm", Cluster(H100, 4, 2), tmp_path)
    record_result(failed, "local", PAIR, tmp_path)
    kept = read_json(tmp_path / "selftest.json")
    assert kept["schema"] == "parlay.selftest_record/1"
    assert {name: entry["passed"] for name, entry in kept["selftests"].items()} == {"h100-80gb": True, "cpu": False}
    entry = kept["selftests"]["h100-80gb"]
    assert (entry["launcher"], entry["num_nodes"], entry["gpus_per_node"]) == ("slurm", 2, 4)
    assert entry["fingerprint"] == {"torch": "2.13.0"}
    assert entry["at"].endswith("Z")


@pytest.mark.parametrize(
    ("text", "words"), [("{", "Expecting property name"), ("[]", "not a JSON object"), ('{"selftests": 7}', "is int")]
)
def test_a_damaged_record_is_told_and_replaced_and_the_result_is_not_lost(tmp_path, text, words, logged):
    (tmp_path / "selftest.json").write_text(text)
    record_result(SelftestReport(tuple(CASES), Results(tuple(GOOD), {})), "local", PAIR, tmp_path)
    assert (read_json(tmp_path / "selftest.json") or {})["selftests"]["cpu"]["passed"]
    [note] = logged
    assert words in note
    assert str(tmp_path / "selftest.json") in note


ON_SLURM = {
    "cluster": {"accelerator": "a100-80gb", "gpus_per_node": 4, "num_nodes": 8},
    "space": {"num_nodes": [2, 8]},
    "launcher": {"kind": "slurm", "fabric_check": True},
}


def test_a_search_checks_the_shapes_of_its_layouts_where_it_asks_for_it(tmp_path):
    spec = loaded(tmp_path, MINIMAL, "global_batch_size=64", **ON_SLURM)
    program = fabric_program(spec, candidates_of(spec).layouts)
    assert program.cluster.num_gpus == 32
    assert {(shape["num_ranks"], shape["stride"]) for shape in program.trainer["shapes"]} >= {(2, 1), (8, 1), (32, 1)}
    assert fabric_program(replace(spec, launcher=LauncherSection(kind="slurm")), ()) is None


def test_slow_nodes_are_avoided_and_links_are_those_of_the_others():
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), 9)
    assert (found["slow_nodes"], found["num_available"]) == (["n2"], 9)
    links = decode(Links, found["links"])
    assert links.domains[0].bus_gb_per_s == pytest.approx(200.0)
    assert dict(links.fabric.by_nodes)[2] == pytest.approx(90.0)
    assert found["findings"][0].startswith("n2 is slow")


def test_where_the_launcher_cannot_avoid_a_node_its_links_are_measured_with_it():
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), None)
    assert (found["slow_nodes"], found["findings"][0][:10]) == ([], "n2 is slow")
    assert dict(decode(Links, found["links"]).fabric.by_nodes)[2] == pytest.approx(27.0)


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
