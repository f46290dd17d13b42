"""The measured part of a cluster, its precisions, and errors of a job without measurements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.calibrate import CalibrationFailed, calibrate, calibration_cluster, precisions_of
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchRequest
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.scripted import ScriptedLauncher, leave_words_of_a_rank, one_job
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.calibration import Measurements
from trials.diagnostics.parity_models import SHAPES
from trials.files.folders import SearchFolder

SEARCH = """\
name: mine
model: gpt2-tiny
cluster: {accelerator: CARD, gpus_per_node: 4, num_nodes: NODES}
global_batch_size: 64
space: {tensor_parallel: [1, 2]}
"""
ENDED = LaunchStatus(Liveness.ENDED, started=True)
FOUND = Measurements(memory_gb_per_s=8.0)


def spec_of(tmp_path: Path, *sets: str, card: str = "a100-80gb", nodes: int = 16) -> SearchSpec:
    path = tmp_path / "mine.yaml"
    path.write_text(SEARCH.replace("CARD", card).replace("NODES", str(nodes)))
    return load_search_file(path, sets)


def launcher_of(
    status: LaunchStatus, found: Measurements | None = None, excerpt: str | None = None
) -> ScriptedLauncher:
    """Launcher whose ranks leave `found`, or a failure of rank 1."""

    def leave(request: LaunchRequest, number: int) -> None:
        if found is not None:
            found.write(request.folder.path)
        if excerpt is not None:
            leave_words_of_a_rank(request, excerpt)

    return one_job(status, leave)


def run(tmp_path: Path, launcher: ScriptedLauncher) -> Measurements:
    cluster = Cluster(ACCELERATORS["cpu"], 2, 1)
    folder = SearchFolder(tmp_path / "calibrate-abc123")
    return calibrate(AttemptRunner(launcher), folder, cluster, SHAPES["gpt2"], ["fp32", "bf16"], sys.executable)


@pytest.mark.parametrize(
    ("nodes", "sets", "measured"),
    [
        (1, [], 1),
        (16, [], 16),
        (16, ["constraints.max_nodes=4"], 4),
        (16, ["space.num_nodes=[2, 8]"], 8),
        (16, ["space.num_nodes=1"], 2),
    ],
)
def test_what_a_trial_may_use_is_measured_and_two_nodes_where_there_are(tmp_path, nodes, sets, measured):
    cluster = calibration_cluster(spec_of(tmp_path, *sets, nodes=nodes))
    assert (cluster.num_nodes, cluster.gpus_per_node) == (measured, 4)


def test_fewer_nodes_are_measured_where_it_is_said(tmp_path):
    assert calibration_cluster(spec_of(tmp_path), 3).num_nodes == 3


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
        ("a100-80gb", ["space.precision=bf16"], ["fp32", "bf16"]),
        ("v100-32gb", ["space.precision=[bf16, fp16]"], ["fp32", "fp16"]),
    ],
)
def test_the_searchs_precisions_are_measured_and_the_optimizers(tmp_path, card, sets, precisions):
    assert precisions_of(spec_of(tmp_path, *sets, card=card)) == precisions


def test_the_attempt_runs_the_measuring_program_with_the_searchs_model(tmp_path):
    launcher = launcher_of(ENDED, FOUND)
    assert run(tmp_path, launcher) == FOUND
    [request] = launcher.requests
    assert request.argv[1:3] == ("-m", "trials.train.calibrate")
    assert (Path(request.code) / "trials/train/calibrate/benchmarks.py").exists()
    assert (request.spec.model, request.spec.num_gpus) == (SHAPES["gpt2"], 2)
    assert request.spec.trainer == {"kind": "calibrate", "precisions": ["fp32", "bf16"]}


def test_a_rank_that_failed_is_reported_in_its_own_words_with_its_log(tmp_path):
    launcher = launcher_of(
        LaunchStatus(Liveness.ENDED, started=True, failed=True), excerpt="Traceback ...\nValueError: no such device\n"
    )
    with pytest.raises(CalibrationFailed) as caught:
        run(tmp_path, launcher)
    assert str(caught.value) == "rank 1: script_error: ValueError: no such device"
    assert caught.value.log == launcher.requests[0].folder.path / "rank-00001.log"


def test_ranks_that_were_killed_are_reported_in_the_launchers_words_also_where_numbers_are_there(tmp_path):
    launcher = launcher_of(LaunchStatus(Liveness.ENDED, started=True, failed=True, detail="rank 0 was killed"), FOUND)
    with pytest.raises(CalibrationFailed) as caught:
        run(tmp_path, launcher)
    assert str(caught.value) == "rank 0 was killed"
    assert launcher.clock < 5.0


def test_numbers_that_another_machine_wrote_are_waited_for(tmp_path):
    launcher = launcher_of(ENDED)
    with pytest.raises(CalibrationFailed, match="left no measurements"):
        run(tmp_path, launcher)
    assert launcher.clock > 90.0
