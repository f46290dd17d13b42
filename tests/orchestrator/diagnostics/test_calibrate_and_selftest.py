"""Calibration, selftest and fabric check: their nodes and cases, their messages, and what follows from them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.calibrate import calibration, calibration_cluster, precisions_of
from orchestrator.diagnostics.cluster_file import (
    CalibrationContext,
    calibrated_cluster,
    cluster_file,
)
from orchestrator.diagnostics.doctor.finding import Severity
from orchestrator.diagnostics.fabric import conclude, fabric_findings, fabric_program, findings_of
from orchestrator.diagnostics.job import ProgramFailed, run_on_cluster
from orchestrator.diagnostics.selftest import (
    SelftestAnswer,
    cases_for,
    cluster_for,
    groups_of,
    record_result,
    selftest,
    selftest_cluster,
)
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchRequest
from orchestrator.planning.candidates import candidates_of
from search_spaces.decoding import decode
from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster, MeasuredSpeed
from search_spaces.hardware.links import Bandwidth, Fabric, LinkDomain, Links
from search_spaces.schema.cluster_sections import ClusterSection
from search_spaces.schema.validation import validate
from search_spaces.schema.yaml_document import parse_document
from tests.kit import MINIMAL, loaded
from tests.orchestrator.scripted import Script, ScriptedLauncher, leave_words_of_a_rank, one_job, outcome_of
from tests.trials.diagnostics.test_fabric_findings import LINKS, cluster, slow_at, times
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.calibration import (
    SMALL_BYTES,
    Collective,
    GroupTime,
    Measurements,
    PairTime,
    Product,
    ProductRate,
    block_sizes,
    pair_distances,
)
from trials.diagnostics.fabric_findings import judge
from trials.diagnostics.named_parity_cases import QUICK
from trials.diagnostics.parity_cases import failing_cases, named_case
from trials.diagnostics.parity_models import SHAPES
from trials.diagnostics.selftest import Case, CaseResult, Results, cases_of
from trials.files.folders import SearchFolder, read_json, write_json
from trials.trial import FailureReason


def spec_of(folder: Path, *sets: str, card: str = "a100-80gb", nodes: int = 16) -> SearchSpec:
    cluster = {"accelerator": card, "gpus_per_node": 4, "num_nodes": nodes}
    return loaded(folder, MINIMAL, *sets, cluster=cluster, global_batch_size=64)


ENDED = LaunchStatus(Liveness.ENDED, started=True)
FOUND = Measurements(memory_gb_per_s=8.0)


def run(tmp_path: Path, launcher: ScriptedLauncher) -> Measurements:
    cluster = Cluster(ACCELERATORS["cpu"], 2, 1)
    folder = SearchFolder(tmp_path / "calibrate-abc123")
    program = calibration(cluster, SHAPES["gpt2"], ["fp32", "bf16"], sys.executable)
    return run_on_cluster(AttemptRunner(launcher), folder, program)[1]


@pytest.mark.parametrize(
    ("nodes", "sets", "measured"),
    [
        (16, ["constraints.max_nodes=4"], 4),
        (16, ["space.num_nodes=[2, 8]"], 8),
        (16, ["space.num_nodes=1"], 2),
    ],
)
def test_what_a_trial_may_use_is_measured_and_two_nodes_where_there_are(tmp_path, nodes, sets, measured):
    cluster = calibration_cluster(spec_of(tmp_path, *sets, nodes=nodes))
    assert (cluster.num_nodes, cluster.gpus_per_node) == (measured, 4)


@pytest.mark.parametrize(("nodes", "asked", "rule"), [(16, 1, "from 2 to the"), (16, 17, "16"), (1, 2, "has 1 node")])
def test_nodes_that_tell_nothing_or_are_not_there_are_refused(tmp_path, nodes, asked, rule):
    with pytest.raises(InputError) as caught:
        calibration_cluster(spec_of(tmp_path, nodes=nodes), asked)
    problem = caught.value.problems[0]
    assert (problem.key, problem.value) == ("--nodes", asked)
    assert rule in problem.rule


@pytest.mark.parametrize(
    ("card", "sets", "precisions"),
    [
        ("cpu", [], ["fp32"]),
        ("a100-80gb", ["space.precision=[bf16, fp16]"], ["fp32", "bf16", "fp16"]),
        ("v100-32gb", ["space.precision=[bf16, fp16]"], ["fp32", "fp16"]),
    ],
)
def test_the_searchs_precisions_are_measured_and_the_optimizers(tmp_path, card, sets, precisions):
    assert precisions_of(spec_of(tmp_path, *sets, card=card)) == precisions


def test_the_attempt_runs_the_measuring_program_with_the_searchs_model(tmp_path):
    launcher = one_job(ENDED, lambda request, number: FOUND.write(request.folder.path))
    assert run(tmp_path, launcher) == FOUND
    [request] = launcher.requests
    assert request.argv[1:3] == ("-m", "trials.train")
    assert (Path(request.code) / "trials/train/diagnostics/benchmarks.py").exists()
    assert (request.spec.model, request.spec.num_gpus) == (SHAPES["gpt2"], 2)
    assert request.spec.trainer == {"kind": "calibrate", "precisions": ["fp32", "bf16"]}


def test_a_rank_that_failed_is_reported_in_its_own_words_with_its_log(tmp_path):
    words = "Traceback ...\nValueError: no such device\n"
    failed = LaunchStatus(Liveness.ENDED, started=True, failed=True)
    launcher = one_job(failed, lambda request, number: leave_words_of_a_rank(request, words))
    with pytest.raises(ProgramFailed) as caught:
        run(tmp_path, launcher)
    assert str(caught.value) == "rank 1: script_error: ValueError: no such device"
    assert caught.value.log == launcher.requests[0].folder.path / "rank-00001.log"


A100, CPU = ACCELERATORS["a100-80gb"], ACCELERATORS["cpu"]
LARGE = 2**30
FINGERPRINT = {"torch": "2.13.0", "python": "3.11.7", "device": "A100", "hosts": ["n1", "n2"]}


def measured(
    cluster: Cluster, bus: dict[int, float], small_us: dict[int, float], alone: float = 20.0, together: float = 10.0
) -> Measurements:
    """Measurements of ranks whose all-reduces reach `bus` GB/s by size, and gathers 0.8 of it. In an all-to-all between
    nodes each sends 4 GB/s to all others.

    All pairs at once reach `together` GB/s each; a single pair n ranks apart reaches n x `alone`, so that each differs.
    """
    groups, pairs = [], []
    for size in block_sizes(cluster.gpus_per_node, cluster.num_nodes):
        share = (size - 1) / size * LARGE / bus[size] / 1e9
        groups += [
            GroupTime(Collective.ALL_REDUCE, size, SMALL_BYTES, small_us[size] * 1e-6),
            GroupTime(Collective.ALL_REDUCE, size, LARGE, 2 * share),
            GroupTime(Collective.ALL_GATHER, size, LARGE, share / 0.8),
        ]
        if size > cluster.gpus_per_node:
            groups.append(GroupTime(Collective.ALL_TO_ALL, size, LARGE, (size - 1) / size * LARGE / 4e9))
    for apart in pair_distances(cluster.gpus_per_node, cluster.num_nodes):
        pairs += [
            PairTime(apart, True, SMALL_BYTES, 7e-6),
            PairTime(apart, True, LARGE, LARGE / (apart * alone) / 1e9),
            PairTime(apart, False, LARGE, LARGE / together / 1e9),
        ]
    products = (
        ProductRate(Product("square-2048", 2048, 2048, 2048), "fp32", 17.2),
        ProductRate(Product("square-8192", 8192, 8192, 8192), "fp32", 18.51234),
        # One and two parts of the work, at 10 and at 20: 3 / (1 / 10 + 2 / 20).
        ProductRate(Product("mlp-in", 2048, 2048, 2048), "fp32", 10.0),
        ProductRate(Product("head", 2048, 2048, 4096), "fp32", 20.0),
        ProductRate(Product("square-8192", 8192, 8192, 8192), "bf16", 251.0),
    )
    return Measurements(products, 1702.0, 25.0, 22.5, tuple(groups), tuple(pairs), FINGERPRINT, "2026-11-21T22:00:00Z")


NODES = Cluster(A100, 8, 4)
BUS = {2: 200.0, 4: 230.0, 8: 231.0, 16: 90.0, 32: 80.0}
SMALL_US = {2: 10.0, 4: 12.0, 8: 15.0, 16: 25.0, 32: 39.0}


def text_of(cluster: Cluster, found: Measurements) -> str:
    return cluster_file(calibrated_cluster(cluster, found), found, CalibrationContext("mine", "slurm", cluster))


def read(text: str) -> Cluster:
    return validate(ClusterSection, parse_document(text.encode(), "mine.yaml", Path())).cluster()


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("gpus_per_node", [1, 2, 6, 8])
def test_the_search_file_reads_what_was_written(gpus_per_node, num_nodes):
    cluster = Cluster(A100, gpus_per_node, num_nodes)
    sizes = block_sizes(gpus_per_node, num_nodes)
    found = measured(cluster, {size: 123.456789 / size for size in sizes}, {size: 1.23456 * size for size in sizes})
    calibrated = calibrated_cluster(cluster, found)
    again = read(text_of(cluster, found))
    assert again == cluster
    assert again.given_links == calibrated.given_links
    assert again.measured == calibrated.measured
    assert again.measured is not None


def test_a_domain_is_kept_where_its_bandwidth_is_notably_another():
    links = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).links
    assert [(d.name, d.num_ranks) for d in links.domains] == [("node", 8)]
    two_kinds = measured(NODES, BUS | {2: 400.0, 4: 240.0}, SMALL_US)
    links = calibrated_cluster(NODES, two_kinds).links
    assert [(d.name, d.num_ranks, d.bus_gb_per_s) for d in links.domains] == [("pair", 2, 400), ("node", 8, 231)]
    # The middle one is near its outer neighbour, the inner one near the middle one only.
    rising = calibrated_cluster(NODES, measured(NODES, BUS | {2: 180.0, 4: 205.0}, SMALL_US)).links
    assert [(d.name, d.bus_gb_per_s) for d in rising.domains] == [("pair", 180), ("node", 231)]


def test_the_fabric_predicts_the_exchanges_it_was_measured_by():
    links = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).links
    to_other_nodes = 3.097  # 24 of the 31 others, at 4 GB/s in all
    curve = Bandwidth(2, 90.0, 72.0), Bandwidth(4, 80.0, 64.0)
    assert links.fabric == Fabric(88.89, 6.0, curve, 160.0, all_to_all_gb_per_s=to_other_nodes)
    # All ranks of a node at once: 8 pairs with 10 GB/s each. A small all-reduce of all 32 ranks: 39 us.
    assert links.p2p_gb_per_s(2, 8, 8) == pytest.approx(10.0, rel=1e-3)
    assert links.latency_us(32, 1, 8) == pytest.approx(39.0, rel=1e-3)
    assert links.collective_gb_per_s(32, 1, 8) == 80.0
    assert links.collective_gb_per_s(32, 1, 8, gathers=True) == 64.0


def test_a_node_of_one_rank_has_no_domain_and_one_rank_alone_no_links():
    singles = Cluster(A100, 1, 2)
    links = calibrated_cluster(singles, measured(singles, {2: 20.0}, {2: 12.0})).links
    assert links.domains == ()
    assert links.fabric == Fabric(11.11, 6.0, (Bandwidth(2, 20.0, 16.0),), 20.0, all_to_all_gb_per_s=4.0)
    alone = Cluster(CPU, 1, 1)
    assert calibrated_cluster(alone, measured(alone, {}, {})).given_links is None
    assert "links" not in text_of(alone, measured(alone, {}, {}))


def test_gemms_are_rated_by_the_models_own_products_or_the_squares_and_the_host_by_its_slower_direction():
    speed = calibrated_cluster(NODES, measured(NODES, BUS, SMALL_US)).measured
    assert speed == MeasuredSpeed({"fp32": 15.0, "bf16": 251.0}, 1702.0, 22.5)


RACKS = Links((LinkDomain("node", 4, 999, 9), LinkDomain("rack", 16, 999, 9)), Fabric(50, 5, p2p_gb_per_s=12))


@pytest.mark.parametrize(("num_nodes", "fastest"), [(2, 8), (4, 16), (8, 16)])
def test_link_domains_of_several_nodes_are_measured_as_such_and_the_fabric_beyond_them(num_nodes: int, fastest: int):
    cluster = Cluster(A100, 4, num_nodes, RACKS)
    bus = {2: 231.0, 4: 230.0, 8: 228.0, 16: 220.0, 32: 80.0}
    found = measured(cluster, bus, dict.fromkeys(bus, 20.0))
    links = calibrated_cluster(cluster, found).links
    node, rack = links.domains
    assert (node.num_ranks, rack.name, rack.num_ranks, rack.bus_gb_per_s) == (4, "rack", 16, bus[fastest])
    assert (rack.latency_us, rack.p2p_gb_per_s) == (20, 80)
    assert (links.fabric.nic_gb_per_s, links.fabric.p2p_gb_per_s) == (50, 12)
    assert [(point.num_nodes, point.bus_gb_per_s) for point in links.fabric.by_nodes] == [(8, 80.0)] * (num_nodes == 8)
    assert read(text_of(cluster, found)).links == links


H100 = ACCELERATORS["h100-80gb"]
PAIR = Cluster(ACCELERATORS["cpu"], 2, 1)
CASES = [named_case("one", data_parallel=2), named_case("two", tensor_parallel=2), named_case("alone")]
HANG = failing_cases(2)[1]


def passing(name: str) -> CaseResult:
    return CaseResult(name, 2, True, 1e-7, 1e-5, 1.0)


GOOD = [passing("one"), passing("two")]


def selftested(
    tmp_path: Path, cases: list[Case], fails: Mapping[str, FailureReason]
) -> tuple[SelftestAnswer, ScriptedLauncher]:
    """The selftest of these cases, of which these end their ranks."""

    def look(request: LaunchRequest, number: int) -> LaunchStatus:
        names = [case.name for case in cases_of(request.spec.trainer)]
        done = list(takewhile(lambda name: name not in (*fails, "hang"), names))
        Results(tuple(map(passing, done[:number])), {"torch": "2.13.0"}).write(request.folder.path)
        if number <= len(done):
            return LaunchStatus(Liveness.ALIVE, started=True)
        if done == names or not fails:
            return ENDED
        leave_words_of_a_rank(request, "Traceback\nValueError: no\n", fails[names[len(done)]])
        return replace(ENDED, failed=True)

    launcher = ScriptedLauncher(lambda spec: Script(duration_s=0.0, look=look), clock=0.0)
    seen: list[CaseResult] = []
    folder = SearchFolder(tmp_path / "selftest-abc123")
    answer = selftest(AttemptRunner(launcher), folder, PAIR, cases, sys.executable, seen.append)
    assert seen == answer.results
    return answer, launcher


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
    [quick] = groups_of(cases_for(PAIR, QUICK), "cpu")
    assert len(quick) == 5


@pytest.mark.slow
@pytest.mark.parametrize("engine", [MEGATRON_CORE, TORCHTITAN])
def test_layouts_of_a_packages_engine_are_among_them_where_the_search_names_it(engine):
    native, mixed = cases_for(PAIR, engines=("torch", "deepspeed")), cases_for(PAIR, engines=("torch", engine))
    added = [case for case in mixed if case.layout.engine == engine]
    assert max(case.layout.num_gpus for case in added) == PAIR.num_gpus
    assert [case for case in mixed if case not in added] == native


def test_cases_of_an_engine_and_as_many_ranks_are_one_attempt_that_holds_no_more_ranks(tmp_path):
    answer, launcher = selftested(tmp_path, [*CASES, named_case("three", engine="deepspeed")], {})
    assert answer.passed
    assert answer.fingerprint == {"torch": "2.13.0"}
    groups = [[case.name for case in cases_of(request.spec.trainer)] for request in launcher.requests]
    assert groups == [["one", "two"], ["alone"], ["three"]]
    assert [request.spec.num_gpus for request in launcher.requests] == [2, 1, 1]
    assert launcher.requests[0].argv[1:3] == ("-m", "trials.train")
    assert (Path(launcher.requests[0].code) / "trials/train/selftest/program.py").exists()


def test_a_case_that_ends_its_ranks_fails_in_their_words_and_those_after_it_run(tmp_path):
    answer, launcher = selftested(tmp_path, CASES, {"one": FailureReason.SCRIPT_ERROR})
    assert [(result.name, result.passed) for result in answer.results] == [
        *(("one", False), ("two", True), ("alone", True)),
    ]
    assert answer.results[0].message == "rank 1: script_error: ValueError: no"
    assert len(launcher.requests) == 3


def test_a_group_of_which_several_cases_end_their_ranks_is_given_up(tmp_path):
    cases = [named_case(f"case{number}") for number in range(5)]
    failing = dict.fromkeys([case.name for case in cases], FailureReason.SCRIPT_ERROR)
    answer, launcher = selftested(tmp_path, cases, failing)
    assert (len(launcher.requests), len(answer.results), answer.passed) == (3, 5, False)
    assert answer.results[-1].message == "not run: 3 cases of engine torch on as many ranks failed before it"


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ({"hang": FailureReason.HANG}, None),
        ({"hang": FailureReason.SCRIPT_ERROR}, "ended as rank 1: script_error: ValueError: no instead of hang"),
        ({}, "ended as measured instead of hang"),
    ],
)
def test_a_case_that_must_fail_passes_only_when_its_attempt_fails_for_the_reason(tmp_path, fails, message):
    answer, _ = selftested(tmp_path, [HANG], fails)
    assert [(result.passed, result.message) for result in answer.results] == [(message is None, message)]


@pytest.mark.parametrize(("num_ranks", "per_node", "nodes"), [(2, 2, 1), (4, 4, 1), (8, 4, 2), (6, 3, 2), (5, 0, 0)])
def test_an_attempt_has_the_fewest_nodes_with_as_many_ranks_on_each(num_ranks, per_node, nodes):
    part = cluster_for(num_ranks, Cluster(H100, 4, 2))
    assert (part and (part.gpus_per_node, part.num_nodes)) == ((per_node, nodes) if nodes else None)


def test_the_last_selftest_of_each_accelerator_is_kept(tmp_path):
    passed = SelftestAnswer.of(CASES, Results(tuple(GOOD), {"torch": "2.13.0"}))
    failed = SelftestAnswer.of(CASES, Results((replace(GOOD[0], passed=False),)))
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
    record_result(SelftestAnswer.of(CASES, Results(tuple(GOOD), {})), "local", PAIR, tmp_path)
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


def test_slow_nodes_are_avoided_where_the_launcher_can_and_links_are_those_of_the_nodes_that_are_used():
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), 9)
    assert (found["slow_nodes"], found["num_available"]) == (["n2"], 9)
    links = decode(Links, found["links"])
    assert links.domains[0].bus_gb_per_s == pytest.approx(200.0)
    assert links.fabric.bus_gb_per_s(2) == pytest.approx(90.0)
    assert found["findings"][0].startswith("n2 is slow")
    found = conclude(times(4, slow_at(2)), cluster(4), cluster(4), None)
    assert (found["slow_nodes"], found["findings"][0][:10]) == ([], "n2 is slow")
    assert decode(Links, found["links"]).fabric.bus_gb_per_s(2) == pytest.approx(27.0)


def test_one_node_says_nothing_about_what_joins_it():
    one = times(1, lambda exchange, ranks: 0.5)
    links = decode(Links, conclude(one, cluster(1), cluster(4), 4)["links"])
    assert links.domains[0].bus_gb_per_s == pytest.approx(100.0)
    assert links.fabric == LINKS.fabric
    unknown = Cluster(ACCELERATORS["cpu"], 4, 4)
    assert conclude(one, Cluster(ACCELERATORS["cpu"], 4, 1), unknown, 4)["links"] is None


def test_the_doctor_warns_of_slow_nodes_and_of_slow_shapes():
    found = list(findings_of(judge(times(4, slow_at(2)), cluster(4)), cluster(4)))
    assert [(f.name, f.level) for f in found][:1] == [("slow_nodes", Severity.WARNING)]
    fine = list(findings_of(judge(times(4, slow_at()), cluster(4)), cluster(4)))
    assert [(f.name, f.level) for f in fine] == [("slow_nodes", Severity.OK), ("group_bandwidth", Severity.OK)]


def test_the_doctor_prints_what_each_shape_of_the_search_reaches(tmp_path):
    def leave(request: LaunchRequest, number: int) -> None:
        write_json(request.folder.outcome(), outcome_of(request.spec, Script()).to_json())

    spec = loaded(tmp_path, MINIMAL, "global_batch_size=64", **ON_SLURM)
    runner, folder = AttemptRunner(one_job(ENDED, leave)), SearchFolder(tmp_path / "doctor-abc123")
    found = list(fabric_findings(runner, folder, spec, candidates_of(spec).layouts))
    words = [finding.message for finding in found if finding.name == "exchange"]
    assert "all-reduce over 8 ranks: 0.00367 GB/s, 0.00367 in the slowest of 4 groups; 5e+05 us of latency" in words
    assert all("over" in text for text in words)
