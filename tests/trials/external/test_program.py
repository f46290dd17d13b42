"""Supervisors of a fake trainer, as real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trials.external.ranks import FAKE, RULES, spec_for, start
from tests.trials.train.trial_processes import RunningTrial
from trials.files.folders import read_json, read_lines, write_json
from trials.measurement.step_log import StepPhase, StepRecord
from trials.trial import FailureReason, Outcome, OutcomeStatus

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


IMPATIENT = "tests.trials.external.impatient"


def run(folder: Path, *, codes: set[int], supervisor: str = "trials.external", **given) -> tuple[Outcome, RunningTrial]:
    ranks = start(folder, spec_for(**given), program=(supervisor,))
    assert set(ranks.wait()) == codes, ranks.logs()
    await_no_process_in(ranks.folder.path)
    return ranks.outcome(), ranks


def await_no_process_in(folder: Path) -> None:
    """Wait until nothing runs there; a process that starts while its supervisor exits notices only once its interpreter
    runs."""
    deadline = time.monotonic() + 60.0
    while left := processes_in(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def processes_in(folder: Path) -> list[str]:
    """Commands of processes whose working directory is this folder, in which trainers run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == folder:
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.alone
def test_a_megatron_run_is_measured_from_the_last_ranks_log_and_ended_once_it_is_precise(tmp_path):
    outcome, ranks = run(tmp_path, codes={0})
    assert outcome.status is OutcomeStatus.MEASURED
    measured = outcome.measured
    assert measured.step_time_s == pytest.approx(0.101, abs=0.001)
    assert measured.tokens_per_sec == pytest.approx(4 * 32 / measured.step_time_s)
    assert (measured.warmup_steps, measured.peak_memory_gib) == (6, 3073 / 1024)
    assert measured.startup_s > 0
    assert list(measured.startup_parts_s) == ["rendezvous", "build", "first_step", "warmup"]
    assert measured.startup_s == pytest.approx(sum(measured.startup_parts_s.values()))
    records = read_lines(StepRecord, ranks.folder.metrics())
    assert [r.phase for r in records] == [StepPhase.WARMUP] * 6 + [StepPhase.MEASURED] * (len(records) - 6)
    assert (records[0].step_time_s, records[0].loss, records[0].samples) == (0.5, 9.99, 4)
    assert len(records) < 50  # of the 60 that it was told to train
    assert "rank 1 of 2 at 127.0.0.1:" in ranks.folder.rank_log(1).read_text()


@pytest.mark.parametrize(
    ("fault", "reason", "rank", "words"),
    [
        ("oom", FailureReason.GPU_OOM, 0, "MemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("dead_rank", FailureReason.NODE_FAILURE, 1, "was killed by signal 9"),
        ("broken", FailureReason.SCRIPT_ERROR, 0, "ValueError: the optimizer has no parameters"),
        ("another_layout", FailureReason.RESULT_INVALID, 1, "tensor_parallel is 1, the spec says 2"),
        ("nan", FailureReason.RESULT_INVALID, 1, "loss nan"),
    ],
)
def test_one_rank_that_fails_ends_all_with_the_first_real_cause(tmp_path, fault, reason, rank, words):
    patient = replace(RULES, time_limit_s=600.0)  # so that it is no hang that ends the others
    outcome, _ = run(tmp_path, codes={1}, fault=fault, rules=patient)
    assert (outcome.reason, outcome.rank) == (reason, rank)
    assert words in (outcome.excerpt or "")
    assert [*outcome.fingerprint["scripts"]] == [FAKE]  # an edit that broke it ends the search by name


@pytest.mark.alone
def test_a_trainer_whose_log_stops_is_a_hang_and_says_what_it_said_last(tmp_path):
    outcome, _ = run(tmp_path, codes={1}, fault="hang", supervisor=IMPATIENT)
    assert (outcome.reason, outcome.phase, outcome.rank) == (FailureReason.HANG, "warmup", 1)
    assert "no progress for 30 s" in (outcome.excerpt or "")
    assert "iteration        2/" in (outcome.excerpt or "")


def test_a_program_that_is_not_there_is_named(tmp_path):
    trainer = {"kind": "command", "template": "no-such-program 1", "patterns": {"step_time_s": r"took (\S+) s"}}
    ranks = start(tmp_path, replace(spec_for(), layout=replace(spec_for().layout, engine="command"), trainer=trainer))
    assert ranks.wait() == [1, 1]
    outcome = ranks.outcome()
    assert outcome.reason is FailureReason.SCRIPT_ERROR
    said = (outcome.excerpt or "").splitlines()
    assert said[-1] == "no-such-program cannot be started: No such file or directory"


def test_a_trainer_that_ends_before_there_are_steps_enough_is_no_number(tmp_path):
    ranks = start(tmp_path, spec_for(fault="ends_early"))
    # Rank 0, whose trainer ended well, leaves with 0 unless it hears of rank 1's verdict before it has left.
    assert ranks.wait() in ([0, 1], [1, 1]), ranks.logs()
    outcome = ranks.outcome()
    assert outcome.reason is FailureReason.RESULT_INVALID
    words = "0 measured steps after 2 steps until the trainer ended by itself; at least 5 are required"
    assert words in (outcome.excerpt or "")


@pytest.mark.walks
@pytest.mark.alone
def test_endless_output_without_a_line_is_a_hang_and_fills_no_disk(tmp_path):
    outcome, ranks = run(tmp_path, codes={1}, fault="endless", supervisor=IMPATIENT)
    assert outcome.reason is FailureReason.HANG
    assert ranks.folder.rank_log(1).stat().st_size < 66 * 2**20


def test_whatever_a_trainer_started_ends_with_it(tmp_path):
    outcome, _ = run(tmp_path, codes={0}, fault="leaves_a_process")  # in a session of its own, and in the same folder
    assert outcome.status is OutcomeStatus.MEASURED


def test_a_trainer_ends_with_a_supervisor_that_was_killed(tmp_path):
    ranks = start(tmp_path, spec_for(fault="hang"))
    deadline = time.monotonic() + 60
    while len(processes_in(ranks.folder.path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for process in ranks.ranks:
        os.kill(process.pid, signal.SIGKILL)  # not the group: nobody is left who could end the trainer
    await_no_process_in(ranks.folder.path)
    ranks.wait()


def test_ranks_of_several_nodes_meet_at_the_address_of_rank_0_and_each_node_is_sampled(tmp_path):
    spec = replace(spec_for(), gpus_per_node=1)
    ranks = start(tmp_path, spec)
    assert set(ranks.wait()) == {0}, ranks.logs()
    told = {ranks.folder.rank_log(rank).read_text().splitlines()[0].split(" at ")[1] for rank in (0, 1)}
    assert len(told) == 1
    assert not told.pop().startswith("127.0.0.1")
    assert all(ranks.folder.system(node).exists() for node in (0, 1))


def test_a_world_of_another_size_is_refused(tmp_path):
    spec = spec_for()
    ranks = start(tmp_path, spec, environment={"WORLD_SIZE": "3"})
    assert set(ranks.wait()) == {1}
    assert "3 ranks were started, the spec says 2" in (ranks.outcome().excerpt or "")


@pytest.mark.parametrize(("fault", "last"), [("ends_early", 2), ("", 11)])
def test_patterns_that_match_nothing_end_the_trial_within_its_first_steps_with_what_the_log_says(tmp_path, fault, last):
    ranks = start(tmp_path, spec_for(fault=fault, patterns={"step_time_s": r"nothing like (\d+)"}))
    ranks.wait()
    outcome = ranks.outcome()
    assert outcome.reason is FailureReason.STEPS_UNREAD
    excerpt = outcome.excerpt or ""
    assert excerpt.endswith("none matches trainer.patterns")  # the last line is what a table has room for
    assert int(re.findall(r"iteration +(\d+)/", excerpt)[-1]) == last


def test_bad_usage_ends_with_2(tmp_path):
    program = [sys.executable, "-m", "trials.external"]
    assert subprocess.run(program, check=False, capture_output=True, timeout=120).returncode == 2
    spec = replace(spec_for(), trainer={"kind": "parlay"})
    write_json(tmp_path / "spec.json", spec.to_json())
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    command = [*program, str(tmp_path / "spec.json")]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120, env=environment)
    assert (done.returncode, b"start trials.train" in done.stderr) == (2, True)
    assert read_json(tmp_path / "outcome.r0.json") is None
