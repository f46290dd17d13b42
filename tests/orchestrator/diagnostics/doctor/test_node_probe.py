"""The probe job: its size, its program, and its failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.node_probe import probe_cluster, submit_test
from orchestrator.launchers.attempt_runner import AttemptRunner
from orchestrator.launchers.base import LaunchRequest
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.orchestrator.diagnostics.doctor.test_nccl_log import TCP
from tests.orchestrator.diagnostics.doctor.test_node_findings import probe
from tests.orchestrator.scripted import ScriptedLauncher, leave_words_of_a_rank, one_job
from trials.attempt_result import LaunchStatus, Liveness
from trials.diagnostics.node_probe import NodeProbeReport
from trials.files.folders import SearchFolder

ENDED = LaunchStatus(Liveness.ENDED, started=True)
FAILED = LaunchStatus(Liveness.ENDED, started=True, failed=True, detail="rank 1 ended with 2")


def launcher_of(
    status: LaunchStatus, found: NodeProbeReport | None = None, excerpt: str | None = None, log: str = ""
) -> ScriptedLauncher:
    """Launcher whose ranks leave a probe report, or a failure of rank 1."""

    def leave(request: LaunchRequest, number: int) -> None:
        request.folder.rank_log(0).write_text(log)
        if found is not None:
            found.write(request.folder.path)
        if excerpt is not None:
            leave_words_of_a_rank(request, excerpt)

    return one_job(status, leave)


def run(folder: Path, launcher: ScriptedLauncher, *changes: str) -> list[Finding]:
    (folder / "runs").mkdir()
    spec = load_search_file(write_search(folder, TINY_SEARCH), ["launcher.kind=slurm", *changes])
    job = SearchFolder(folder / "runs" / "doctor-abc123")
    return list(submit_test(AttemptRunner(launcher), job, spec))


@pytest.mark.parametrize(("nodes", "tested"), [(1, 1), (2, 2), (16, 2)])
def test_two_whole_nodes_are_tested_where_there_are_two(nodes, tested):
    cluster = probe_cluster(Cluster(ACCELERATORS["a100-80gb"], 8, nodes))
    assert (cluster.num_nodes, cluster.gpus_per_node) == (tested, 8)


def test_the_job_runs_the_doctors_program_and_its_logs_are_read(tmp_path):
    launcher = launcher_of(ENDED, probe(2.0), log=TCP)
    changes = ("cluster={accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 2}", "space={num_nodes: 2}")
    findings = {f.name: f for f in run(tmp_path, launcher, *changes, "global_batch_size=64", "baseline={}")}
    [request] = launcher.requests
    assert request.argv[1:3] == ("-m", "trials.train.doctor")
    assert (Path(request.code) / "trials/train/doctor/probe.py").exists()
    assert request.spec.num_gpus == 8
    assert findings["job"].message.startswith("8 ranks on n1, n2 responded")
    assert findings["transport"].level is Level.ERROR


@pytest.mark.parametrize(
    ("torch", "trainer", "expected"),
    [
        ("2.5.1+cu124", "{}", [Level.ERROR]),
        ("2.6.0+cu124", "{}", []),
        ("2.5.1+cu124", "{kind: megatron-lm, script: search.yaml}", []),
    ],
)
def test_a_torch_of_the_nodes_that_is_too_old_for_parlays_trainer_is_an_error(tmp_path, torch, trainer, expected):
    changes = ("cluster={accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 2}", "space={num_nodes: 2}")
    launcher = launcher_of(ENDED, probe(2.0, torch=torch), log=TCP)
    found = run(tmp_path, launcher, *changes, "global_batch_size=64", "baseline={}", f"trainer={trainer}")
    assert [finding.level for finding in found if finding.name == "torch"] == expected


def test_a_job_that_failed_is_reported_in_its_ranks_words_or_in_the_launchers(tmp_path):
    [finding] = run(tmp_path, launcher_of(FAILED, excerpt="Traceback ...\nRuntimeError: no such device\n"))
    assert (finding.name, finding.level) == ("job", Level.ERROR)
    assert finding.message == "rank 1: script_error: RuntimeError: no such device"
    assert "t0001/a1" in (finding.fix or "")


def test_ranks_that_find_no_spec_are_told_of_the_folder_they_do_not_share(tmp_path):
    [finding] = run(tmp_path, launcher_of(FAILED))
    assert finding.message == "the job ended without a report: rank 1 ended with 2"
    assert "does not share the work directory" in (finding.fix or "")
