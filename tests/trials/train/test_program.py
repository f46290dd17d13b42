"""The trial program as a launcher starts it: real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import is_running
from tests.trials.fork_server.servers import until
from tests.trials.train.trial_processes import ENDLESS, LIMIT_S, MODEL, make_spec, start_trial
from trials.files.folders import SearchFolder, read_lines
from trials.measurement.step_log import StepPhase, StepRecord
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import TrialFailure
from trials.ranks.startup import StartupPart
from trials.train.program import require_runnable
from trials.trial import FailureReason, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ENDS_WITHIN_S = 60.0
ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2, engine="deepspeed")


@pytest.mark.parametrize(
    ("layout", "gpus_per_node"), [(TP2, 2), (PP2, 1)], ids=["torch-tp2-one-node", "deepspeed-pp2-two-nodes"]
)
def test_a_trial_is_measured_and_its_outcome_believed(start, layout, gpus_per_node):
    trial = start(make_spec(layout, gpus_per_node=gpus_per_node))
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.result().state is TrialState.MEASURED
    outcome = trial.outcome()
    steps = outcome.measured.warmup_steps + outcome.measured.measured_steps
    assert outcome.proof["samples_per_data_rank"] == [4 * steps]
    assert outcome.measured.loss_last < outcome.measured.loss_first
    parts = outcome.measured.startup_parts_s
    assert list(parts) == [part for part in StartupPart if part is not StartupPart.COMPILE]
    assert outcome.measured.startup_s == pytest.approx(sum(parts.values()))
    assert min(parts.values()) > 0
    assert 0.1 < outcome.measured.peak_memory_gib < 2
    assert outcome.fingerprint["torch"]
    assert trial.folder.heartbeat.exists()
    assert trial.folder.system(0).exists()
    records = read_lines(StepRecord, trial.folder.metrics())
    assert [r.step for r in records] == list(range(1, steps + 1))
    assert [r.step_time_s for r in records] == list(outcome.step_times_s)
    assert sum(r.phase is StepPhase.MEASURED for r in records) == outcome.measured.measured_steps


def test_ranks_that_meet_by_file_listen_on_loopback_only(start):
    trial = start(make_spec(TP2, measure=ENDLESS))
    trial.wait_for_steps(1)
    connections = [one for rank in trial.ranks for one in psutil.Process(rank.pid).net_connections()]
    assert {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_the_rank_its_restart_and_its_job_may_come_from_slurm(start, monkeypatch, tmp_path):
    spec = make_spec(ONE)
    folder = tmp_path / spec.search_id / "trials" / "t0001" / "a1"
    folder.mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(spec.to_json()))
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0", "SLURM_RESTART_COUNT": "2"}
    slurm |= {"SLURM_JOB_ID": "4711", "SLURMD_NODENAME": "n17"}
    environment = {name: value for name, value in os.environ.items() if name != "RANK"} | slurm
    command = [sys.executable, "-m", "trials.train", str(folder / "spec.json")]
    subprocess.run(command, env=environment, check=True, timeout=120, capture_output=True)
    outcome = json.loads((folder / "outcome.r2.json").read_text())
    assert outcome["status"] == "measured"
    assert (outcome["fingerprint"]["job_id"], outcome["fingerprint"]["hosts"]) == ("4711", ["n17"])


def test_a_killed_rank_takes_the_others_along(start):
    trial = start(make_spec(TP2, measure=ENDLESS))
    trial.wait_for_steps(2)
    trial.ranks[1].kill()
    assert trial.wait(ENDS_WITHIN_S) == [1, -signal.SIGKILL]
    assert trial.result().reason is FailureReason.NODE_FAILURE


@pytest.mark.parametrize(
    ("layout", "fields", "rule"),
    [
        (replace(ONE, pipeline_parallel=2, grad_accum_steps=1), {}, "grad_accum_steps is 1 with pipeline_parallel 2"),
        (TP2, {"model": replace(MODEL, vocab_size=63)}, "vocab_size 63 is not a multiple"),
        (ONE, {"global_batch_size": 5}, "global batch is 4, the spec's 5"),
        (ONE, {"num_gpus": 2}, "the layout has 1 ranks, the spec 2"),
    ],
    ids=["engine", "shards", "batch", "world"],
)
def test_a_layout_that_cannot_run_is_refused_before_anything_is_waited_for(layout, fields, rule):
    with pytest.raises(InputError, match=rule):
        require_runnable(make_spec(layout, **fields), RankEnvironment(rank=0, world_size=layout.num_gpus, local_rank=0))


def test_another_world_than_the_layouts_is_refused():
    with pytest.raises(TrialFailure, match="1 ranks were started, the spec says 2") as ended:
        require_runnable(make_spec(TP2), RankEnvironment(rank=0, world_size=1, local_rank=0))
    assert ended.value.reason is FailureReason.RESULT_INVALID


def test_ranks_whose_launcher_is_gone_end(tmp_path):
    launcher = subprocess.Popen([sys.executable, "-m", "tests.trials.train.test_program", str(tmp_path)])
    folder = SearchFolder(tmp_path / make_spec(TP2).search_id).attempt("t0001", "a1")
    until(lambda: folder.metrics().exists() and (folder.path / "pids").read_text(), timeout_s=LIMIT_S)
    pids = [int(pid) for pid in (folder.path / "pids").read_text().split()]
    launcher.kill()
    launcher.wait()
    until(lambda: not any(map(is_running, pids)), timeout_s=LIMIT_S)


def _launch_and_wait(work_dir: Path) -> None:
    """A launcher in its own process, to be killed."""
    trial = start_trial(work_dir, make_spec(TP2, measure=ENDLESS))
    (trial.folder.path / "pids").write_text(" ".join(str(rank.pid) for rank in trial.ranks))
    trial.wait(300)


if __name__ == "__main__":
    _launch_and_wait(Path(sys.argv[1]))
