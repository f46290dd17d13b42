"""The tested part of a cluster, the cases of a selftest, its messages and its record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.diagnostics.selftest import (
    SelftestReport,
    cases_for,
    record_result,
    selftest,
    selftest_cluster,
)
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import Launcher, LaunchRequest
from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.scripted import ScriptedLauncher, one_job
from trials.attempt_result import LaunchStatus, Liveness
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
    [(8, 1, 8, 1), (16, 1, 8, 1), (4, 1, 4, 1), (8, 16, 4, 2), (4, 2, 4, 2), (2, 8, 2, 4), (1, 3, 1, 3), (1, 1, 1, 1)],
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
def test_compiled_layouts_are_among_them_on_gpus_where_the_ranks_suffice():
    assert not [case for case in cases_for(selftest_cluster(Cluster(CPU, 8, 1))) if case.layout.torch_compile]
    on_two = [case.name for case in cases_for(Cluster(H100, 2, 1)) if case.layout.torch_compile]
    assert "compiled-one-rank" in on_two
    assert "compiled-tensor-pipeline" not in on_two


@pytest.mark.slow
@pytest.mark.parametrize("engine", [MEGATRON_CORE, TORCHTITAN])
def test_layouts_of_a_packages_engine_are_among_them_where_the_search_names_it(engine):
    native, mixed = cases_for(PAIR, engines=("torch", "deepspeed")), cases_for(PAIR, engines=("torch", engine))
    added = [case for case in mixed if case.layout.engine == engine]
    assert max(case.layout.num_gpus for case in added) == PAIR.num_gpus
    assert [case for case in mixed if case not in added] == native


@pytest.mark.slow
def test_a_case_that_there_is_not_is_refused_by_name():
    with pytest.raises(InputError, match="no case is named 'nosuch'"):
        cases_for(PAIR, ["hang", "nosuch"])


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


def test_each_result_is_reported_once_as_it_comes_and_so_is_what_is_waited_for(tmp_path, logged):
    launcher = launcher_of(GOOD, LaunchStatus(Liveness.ENDED, started=True))
    run(tmp_path, launcher, on_result=lambda result: logged.append(result.name))
    assert logged == ["the queue is full", "one", "two"]


def test_one_case_that_failed_fails_the_selftest(tmp_path):
    bad = CaseResult("two", 2, False, 0.5, 1e-5, 1.0, "differs")
    report = run(tmp_path, launcher_of([GOOD[0], bad], LaunchStatus(Liveness.ENDED, started=True)))
    assert not report.passed
    assert report.failed == [bad]
    assert report.detail is None


def test_ranks_that_died_on_the_way_are_told_and_nothing_is_waited_for(tmp_path):
    launcher = launcher_of(
        GOOD[:1], LaunchStatus(Liveness.ENDED, started=True, failed=True, detail="rank 1 was killed")
    )
    report = run(tmp_path, launcher)
    assert not report.passed
    assert report.detail == "1 of 2 cases were run: rank 1 was killed"
    assert launcher.clock < 5.0


def test_results_that_another_machine_wrote_are_waited_for(tmp_path):
    launcher = launcher_of(GOOD[:1], LaunchStatus(Liveness.ENDED, started=True))
    report = run(tmp_path, launcher)
    assert report.detail == "1 of 2 cases were run: see the ranks' logs"
    assert launcher.clock > 90.0


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


def test_a_record_that_cannot_be_written_is_reported(tmp_path, logged):
    (tmp_path / "home").touch()
    record_result(SelftestReport(tuple(CASES), Results(tuple(GOOD), {})), "local", PAIR, tmp_path / "home")
    [note] = logged
    assert "has no record of this selftest" in note
