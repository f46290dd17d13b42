"""The trial program as a launcher starts it: real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import ENDLESS, MODEL, RULES, faulty, make_spec, start_trial
from trials.measurement.step_log import StepPhase, read_metrics
from trials.outcome_types import ThroughputBound
from trials.trial import FailureReason, OutcomeStatus, Rendezvous, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ENDS_WITHIN_S = 60.0
ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2, engine="deepspeed")


@pytest.mark.parametrize(
    ("layout", "rendezvous"), [(TP2, "file"), (PP2, "tcp")], ids=["torch-tp2-file", "deepspeed-pp2-tcp"]
)
def test_a_trial_is_measured_and_its_outcome_believed(start, layout, rendezvous):
    trial = start(make_spec(layout, rendezvous=Rendezvous(rendezvous)))
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.result().state is TrialState.MEASURED
    outcome = trial.outcome()
    steps = outcome.measured.warmup_steps + outcome.measured.measured_steps
    assert outcome.proof["samples_per_data_rank"] == [4 * steps]
    assert outcome.measured.loss_last < outcome.measured.loss_first
    assert outcome.measured.startup_s == pytest.approx(sum(outcome.measured.startup_parts_s.values()))
    assert 0.1 < outcome.measured.peak_memory_gib < 2
    assert outcome.fingerprint["torch"]
    assert trial.folder.heartbeat.exists()
    assert trial.folder.system(0).exists()
    records = read_metrics(trial.folder.metrics())
    assert [r.step for r in records] == list(range(1, steps + 1))
    assert [r.step_time_s for r in records] == list(outcome.step_times_s)
    assert sum(r.phase is StepPhase.MEASURED for r in records) == outcome.measured.measured_steps


def test_ranks_that_meet_by_file_listen_on_loopback_only(start):
    trial = start(make_spec(TP2, measure=ENDLESS))
    trial.wait_for_steps(1)
    addresses = {address for rank in trial.ranks for address in _listening(rank.pid)}
    assert addresses == {"0100007F"}  # 127.0.0.1, as the kernel writes it


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


def test_an_error_in_one_rank_ends_all_and_its_traceback_is_the_cause_told(start):
    trial = start(make_spec(TP2, measure=ENDLESS), program=faulty("fail_in_the_third_step_of_rank_1"))
    trial.wait_for_steps(2)
    codes = trial.wait(ENDS_WITHIN_S)
    assert 0 not in codes
    outcome = trial.outcome()
    assert (outcome.reason, outcome.rank, outcome.phase) == (FailureReason.SCRIPT_ERROR, 1, "warmup")
    assert "ZeroDivisionError: planted in rank 1" in outcome.excerpt


def test_another_world_than_the_layouts_is_refused_at_once(start):
    trial = start(make_spec(TP2), world_size=1)
    assert trial.wait(ENDS_WITHIN_S) == [1]
    assert trial.result().reason is FailureReason.RESULT_INVALID
    assert "1 ranks were started, the spec says 2" in trial.outcome().excerpt


@pytest.mark.parametrize(
    ("layout", "fields", "words"),
    [
        (replace(ONE, pipeline_parallel=2, grad_accum_steps=1), {}, "1 micro-batches for 2 pipeline stages"),
        (TP2, {"model": replace(MODEL, vocab_size=63)}, "vocab_size 63 is not a multiple of tensor_parallel 2"),
        (
            TP2,
            {"model": replace(MODEL, num_key_value_heads=1)},
            "num_key_value_heads 1 is not a multiple of tensor_parallel 2",
        ),
        (ONE, {"global_batch_size": 5}, "global batch is 4, the spec's 5"),
        (ONE, {"num_gpus": 2}, "the layout has 1 ranks, the spec 2"),
    ],
    ids=["engine", "shards", "key-value-shards", "batch", "world"],
)
def test_a_layout_that_cannot_run_is_refused_at_once(start, layout, fields, words):
    trial = start(make_spec(layout, **fields))
    assert set(trial.wait(ENDS_WITHIN_S)) == {1}
    assert trial.result().reason is FailureReason.INVALID_LAYOUT
    assert words in trial.outcome().excerpt


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("leave_out_a_layer", "local_parameters_sum"),
        ("train_every_sample_twice", "trained"),
        ("lose_the_loss", "loss nan"),
    ],
)
def test_what_was_counted_must_be_what_the_spec_says(start, fault, words):
    trial = start(make_spec(ONE), program=faulty(fault))
    assert trial.wait() == [1]
    outcome = trial.outcome()
    assert (outcome.status, outcome.reason) == (OutcomeStatus.FAILED, FailureReason.RESULT_INVALID)
    assert words in outcome.excerpt


def test_a_failed_trial_leaves_with_1_also_where_it_is_no_fork(start):
    trial = start(make_spec(ONE), program=faulty("lose_the_loss"), warm=None)
    assert trial.wait() == [1]
    assert trial.result().reason is FailureReason.RESULT_INVALID


@pytest.mark.alone
def test_what_rank_0_does_between_steps_is_in_no_step(start):
    trial = start(make_spec(TP2), program=faulty("write_slowly_between_steps"))
    assert set(trial.wait()) == {0}
    assert min(trial.outcome().step_times_s[1:]) < 0.2, "before the first step nothing is written"


@pytest.mark.alone
def test_too_few_steps_before_the_time_limit_are_no_measurement_but_a_bound(start):
    trial = start(make_spec(ONE, measure=ENDLESS), program=faulty("be_at_the_time_limit_in_the_twentieth_step"))
    assert trial.wait() == [1]
    outcome, spec = trial.outcome(), trial.spec
    assert outcome.reason is FailureReason.TIME_LIMIT
    assert "are required" in outcome.excerpt
    fastest_s = min(record.step_time_s for record in read_metrics(trial.folder.metrics())[1:])
    at_most = spec.global_batch_size * spec.model.seq_length / fastest_s
    assert outcome.measured == ThroughputBound(pytest.approx(at_most))
    assert trial.result().reason is FailureReason.TIME_LIMIT


@pytest.mark.alone
def test_a_time_limit_that_ends_before_the_start_has_is_a_time_limit_and_no_hang(start):
    trial = start(make_spec(ONE, measure=replace(ENDLESS, time_limit_s=1.0)))
    assert trial.wait() == [1]
    assert trial.outcome().reason is FailureReason.TIME_LIMIT


@pytest.mark.alone
def test_enough_steps_before_the_time_limit_count_and_say_so(start):
    rules = replace(RULES, max_steps=10**6, ci_relative_width=0.0)
    trial = start(make_spec(ONE, measure=rules), program=faulty("be_at_the_time_limit_in_the_twentieth_step"))
    assert trial.wait() == [0], trial.logs()
    assert trial.outcome().flags == ("time_limit",)
    assert trial.result().state is TrialState.MEASURED


def test_ranks_whose_launcher_is_gone_end(tmp_path):
    launcher = subprocess.Popen([sys.executable, "-m", "tests.trials.train.test_program", str(tmp_path)])
    spec = make_spec(TP2, measure=ENDLESS)
    folder = tmp_path / spec.search_id / "trials" / "t0001" / "a1"
    pids = [int(pid) for pid in _wait_for(folder / "pids").split()]
    _wait_for(folder / "metrics.r0.jsonl")
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + ENDS_WITHIN_S
    while any(_is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_without_a_readable_spec_nothing_is_run(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text("{}")
    command = [sys.executable, "-m", "trials.train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def _wait_for(path: Path) -> str:
    deadline = time.monotonic() + 120
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)
    return path.read_text()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def _listening(pid: int) -> list[str]:
    """Local IPv4 and IPv6 addresses on which a process accepts connections, from proc(5)."""
    inodes = {target[len("socket:[") : -1] for target in _open_files(pid) if target.startswith("socket:[")}
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    listen_state = "0A"
    return [line[1].split(":")[0] for line in lines if line[3] == listen_state and line[9] in inodes]


def _open_files(pid: int) -> Iterator[str]:
    """Files that are open now; a process that trains opens and closes files all the time."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield os.readlink(descriptor)


def _launch_and_wait(work_dir: Path) -> None:
    """A launcher in its own process, to be killed."""
    trial = start_trial(work_dir, make_spec(TP2, measure=ENDLESS))
    (trial.folder.path / "pids").write_text(" ".join(str(rank.pid) for rank in trial.ranks))
    trial.wait(300)


if __name__ == "__main__":
    _launch_and_wait(Path(sys.argv[1]))
