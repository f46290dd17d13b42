"""Evaluation of a trainer's log: proof, cross-checks, reasons, placement, fingerprint. No process is started."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from tests.trials.trainers.specs import LLAMA, spec_of
from trials.attempt_result import are_comparable, expected_proof, outcome_fault, program_change
from trials.external.checks import (
    batch_fault,
    clock_fault,
    cross_checks,
    interval_check,
    layout_proof,
    lines_fault,
    rate_fault,
)
from trials.external.fingerprint import fingerprint
from trials.external.log_follower import failure_of, trainer_environment, trainer_hang_limit_s
from trials.measure_rules import MeasureRules
from trials.measurement.metrics import throughput_fields
from trials.outcome_types import MeasuredMetrics
from trials.ranks.environment import RankEnvironment
from trials.ranks.rendezvous import Address
from trials.trainers.base import Invocation
from trials.trainers.common.log_lines import PROOF_NAMES, command_format
from trials.trainers.common.trainer_log import OutputTail, StepReader, TrainerStep
from trials.trainers.registry import log_rank_of
from trials.trial import FailureReason, Outcome, OutcomeStatus, TrialSpec

SPEC = spec_of("megatron-lm", tensor_parallel=2)
LARGE = replace(SPEC.model, num_layers=48, hidden_size=4096, num_attention_heads=64, ffn_hidden_size=16384)
STEP_TIME_S = 0.1


def metrics_of(spec: TrialSpec) -> MeasuredMetrics:
    return MeasuredMetrics(measured_steps=8, **throughput_fields(spec, spec.global_batch_size, STEP_TIME_S, None))


MEASURED = metrics_of(SPEC)


def checked(spec: TrialSpec = SPEC, **printed: float) -> dict[str, bool]:
    steps = [TrainerStep(number, STEP_TIME_S, spec.global_batch_size, **printed) for number in range(5)]
    return {check["name"]: check["agrees"] for check in cross_checks(spec, metrics_of(spec), steps)}


def test_a_printed_rate_more_than_a_tenth_off_is_reported_and_rounding_is_none():
    said = {"tokens_per_sec": MEASURED.tokens_per_sec * 1.09, "samples_per_sec": MEASURED.samples_per_sec * 0.91}
    assert checked(**said) == {"tokens_per_sec": True, "samples_per_sec": True}
    assert checked() == {}
    assert checked(tokens_per_sec=MEASURED.tokens_per_sec * 1.11) == {"tokens_per_sec": False}
    assert checked(tflops=4 * MEASURED.model_tflops_per_gpu + 0.1) == {"tflops": False}
    assert MEASURED.model_tflops_per_gpu < 0.05
    assert checked(tflops=0.0) == {"tflops": True}


def test_a_log_that_tells_all_of_the_layout_proves_it_and_flops_count_with_what_is_repeated():
    log_format = command_format({name: rf"\b{name}=(\d+)" for name in ("step_time_s", *PROOF_NAMES)})
    reader = StepReader(log_format, SPEC)
    expected = expected_proof(SPEC)
    reader.note(" ".join(f"{name}={value}" for name, value in expected.items()))
    assert layout_proof(SPEC, reader.proof) == expected | {"unproven": []}
    spec = replace(SPEC, layout=replace(SPEC.layout, activation_checkpointing="full"), model=LARGE)
    repeated = spec.model.hardware_flops_per_token(spec.layout) / spec.model.model_flops_per_token
    assert repeated > 1.2
    ours = metrics_of(spec).model_tflops_per_gpu
    assert checked(spec, tflops=ours) == {"tflops": True}
    assert checked(spec, tflops=ours * repeated) == {"tflops": True}
    assert checked(spec, tflops=ours * repeated * 1.2) == {"tflops": False}


def told(step_time_s: float, every: int = 1, lines: int = 8) -> list[TrainerStep]:
    return [TrainerStep(number * every, step_time_s, SPEC.global_batch_size) for number in range(1, lines + 1)]


EVEN = [0.5 * line for line in range(8)]


@pytest.mark.parametrize(
    ("steps", "seen_s", "has_iterations", "words"),
    [
        (told(1e-10), [0.0] * 8, True, "steps of 1e-10 s"),
        (told(1e-4), EVEN, True, "reports 0.0007 s for 8 steps, but their lines arrived over 2.4 s"),
        (told(0.5), EVEN, True, None),
        (told(0.005, every=100), EVEN, True, None),  # a log of every hundredth iteration
        (told(0.005), EVEN, False, None),
        (told(0.5), [0.0] * 4 + [2.0] * 4, True, None),  # lines that are held back
        (told(0.01), [0.0, 0.01, 0.02, 600.0, 600.01, 600.02, 600.03, 600.04], True, None),  # a pause
        (told(1e-3), [0.1 * line for line in range(8)], True, None),  # short steps, and something else meanwhile
        ([], [], True, None),
    ],
)
def test_steps_that_took_much_longer_by_the_clock_than_the_log_says_are_no_numbers(
    steps, seen_s, has_iterations, words
):
    found = clock_fault(steps, seen_s, has_iterations)
    assert found is None if words is None else words in (found or "")


@pytest.mark.parametrize(("factor", "kind"), [(0.8, "gpt-neox"), (2.0, "command")])
def test_a_rate_near_the_batchs_or_read_by_a_users_pattern_is_no_fault(factor, kind):
    spec = replace(spec_of("gpt-neox", tensor_parallel=2), trainer={"kind": kind})
    steps = [TrainerStep(n, STEP_TIME_S, None, samples_per_sec=MEASURED.samples_per_sec * factor) for n in range(5)]
    assert batch_fault(spec, cross_checks(spec, MEASURED, steps)) is None


def outcome(proof: dict) -> Outcome:
    mine = {name: getattr(SPEC, name) for name in ("search_id", "trial", "attempt", "nonce")}
    return Outcome(**mine, status=OutcomeStatus.MEASURED, measured=MEASURED, proof=proof)


def test_what_a_log_does_not_say_is_unproven_and_what_it_says_otherwise_a_fault():
    proof = layout_proof(SPEC, {"world_size": 4.0, "tensor_parallel": 2.0, "global_batch_size": 8.0})
    assert (proof["world_size"], type(proof["world_size"])) == (4, int)
    assert proof["unproven"] == []  # the options are written from layout and model
    assert layout_proof(SPEC, {})["unproven"] == ["global_batch_size", "world_size"]
    assert outcome_fault(SPEC, outcome(proof)) is None
    size = SPEC.model.vocab_size
    assert outcome_fault(SPEC, outcome(layout_proof(SPEC, {"vocab_size": size}))) is None
    fault = outcome_fault(SPEC, outcome(layout_proof(SPEC, {"vocab_size": 2 * size})))
    assert f"a vocabulary of {2 * size} tokens, padding included; model.vocab_size is {size}:" in str(fault)
    for name, value in (("world_size", 8), ("global_batch_size", 16), ("pipeline_parallel", 2)):
        fault = outcome_fault(SPEC, outcome(layout_proof(SPEC, {name: value})))
        assert f"{name} is {value}, the spec says" in str(fault)
    spec = replace(SPEC, trainer={"kind": "parlay"})
    assert "the layout did not take effect" in str(outcome_fault(spec, outcome(layout_proof(SPEC, {}))))


TRACE = "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("code", "lines", "steps", "oom_kills", "reason"),
    [
        (1, ["torch.OutOfMemoryError: CUDA out of memory."], 3, 0, FailureReason.GPU_OOM),
        (-6, [TRACE, "  x", "MemoryError"], 0, 0, FailureReason.GPU_OOM),
        (1, ["RuntimeError: DefaultCPUAllocator: can't allocate memory"], 3, 0, FailureReason.GPU_OOM),
        (-signal.SIGKILL, ["iteration 3"], 3, 1, FailureReason.HOST_OOM),
        (-signal.SIGKILL, ["iteration 3"], 3, 0, FailureReason.NODE_FAILURE),
        (-6, ["[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(...)"], 3, 0, FailureReason.HANG),
        (1, [TRACE, "  x", "RuntimeError: Connection reset by peer"], 3, 0, FailureReason.NODE_FAILURE),
        (1, ["the server socket has failed to listen: EADDRINUSE"], 0, 0, FailureReason.LAUNCH_FAILURE),
        (1, ["the server socket has failed to listen: EADDRINUSE"], 3, 0, FailureReason.SCRIPT_ERROR),
        (2, ["usage: pretrain_gpt.py", "error: unrecognized arguments"], 0, 0, FailureReason.SCRIPT_ERROR),
        (-11, [], 0, 0, FailureReason.SCRIPT_ERROR),
    ],
)
def test_a_reason_follows_from_the_exit_code_and_the_last_words(code, lines, steps, oom_kills, reason):
    words = OutputTail()
    for line in lines:
        words.feed(line)
    failure = failure_of(code, words, steps, oom_kills)
    assert failure.reason is reason
    assert ("was killed by signal" if code < 0 else f"exited with code {code}") in str(failure)
    assert all(line in str(failure) for line in lines)


def test_how_a_trainer_ended_is_never_cut_off():
    words = OutputTail()
    for number in range(30):
        words.feed(f"iteration {number} " + "x" * 490)
    assert str(failure_of(-signal.SIGSEGV, words, 30, 0)).endswith("\nthe trainer was killed by signal 11")
    assert str(failure_of(3, words, 30, 0)).startswith("the trainer exited with code 3\n")


@pytest.mark.parametrize(
    ("kind", "wanted", "rank"),
    [
        ("megatron-lm", None, 7),
        ("gpt-neox", None, 0),
        ("nanotron", None, 4),  # tensor 0, data 0 of the last stage
        ("megatron-lm", "first", 0),
        ("command", "last", 7),
        ("command", 3, 3),
    ],
)
def test_the_rank_that_tells_of_the_steps(kind, wanted, rank):
    trainer = {} if wanted is None else {"log_rank": wanted}
    spec = spec_of(kind, LLAMA, trainer, tensor_parallel=2, pipeline_parallel=2)
    assert log_rank_of(spec) == rank


def test_a_trainer_gets_its_own_environment_and_not_ours(monkeypatch):
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", "TORCHELASTIC_USE_AGENT_STORE", "PARLAY_PARENT_PID"):
        monkeypatch.setenv(name, "1")
    theirs = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "MASTER_PORT": "1", "REFUSED": "1", "ACCEPTED": "32"}
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    refused = {"REFUSED": "1", "ACCEPTED": "1"}
    made = Invocation((), environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1", "OTHER": "2"}, refused=refused)
    found = trainer_environment(SPEC, RankEnvironment(3, 4, 1), made, Address("node7", 20001))
    assert {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node7"}.items() <= found.items()
    assert (found["MASTER_PORT"], found["LOCAL_WORLD_SIZE"]) == ("20001", "4")
    assert (found["CUDA_DEVICE_MAX_CONNECTIONS"], found["OTHER"]) == ("8", "2")
    assert (found.get("REFUSED"), found["ACCEPTED"]) == (None, "32")
    assert not {"PYTHONPATH", "PYTHONSAFEPATH", "TORCHELASTIC_USE_AGENT_STORE", "PARLAY_PARENT_PID"} & set(found)


def test_a_trainers_environment_has_its_gpu_and_its_hang_limit_room_for_long_steps(monkeypatch):
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "5")
    found = trainer_environment(SPEC, RankEnvironment(13, 16, 5), Invocation(()), Address("node7", 20001))
    assert (found["RANK"], found["LOCAL_RANK"]) == ("13", "0")
    assert trainer_hang_limit_s(MeasureRules(time_limit_s=16)) == 8
    assert trainer_hang_limit_s(MeasureRules(time_limit_s=600)) == 300
    assert trainer_hang_limit_s(MeasureRules(time_limit_s=7200)) == 1800


COMMAND = replace(SPEC, trainer={"kind": "command", "template": "train", "patterns": {"step_time_s": "(.+) s"}})


@pytest.mark.parametrize(
    ("at_s", "precision", "is_fault"),
    [(3.5, "fp32", True), (3.5, "fp16", False), (2.5, "fp32", False), (None, "fp32", False)],
)
def test_more_lines_than_optimizer_steps_are_a_fault(at_s, precision, is_fault):
    spec = replace(COMMAND, layout=replace(COMMAND.layout, precision=precision))
    assert (lines_fault(spec, [1.0, 2.0, 3.0, 4.0], at_s) is not None) is is_fault


@pytest.mark.parametrize(
    ("gaps_s", "is_fault"),
    [
        ([0.5] * 7, False),
        ([0.2] * 7, True),
        ([0.2, 0.3] * 3 + [0.2], True),
        ([1.4] + [0.0] * 6, False),  # buffered
        ([1e-5] * 7, False),  # one read
    ],
)
def test_a_step_that_ended_before_its_reported_time_had_passed_is_a_fault(gaps_s, is_fault):
    seen_s = [sum(gaps_s[:number]) for number in range(len(gaps_s) + 1)]
    assert (rate_fault(COMMAND, told(0.5), seen_s) is not None) is is_fault
    assert rate_fault(SPEC, told(0.5), seen_s) is None  # of a log whose format is known


def test_steps_that_take_longer_than_they_report_are_told():
    [slow], [fine] = (interval_check(told(0.5), [gap * line for line in range(8)]) for gap in (1.0, 0.8))
    assert (slow["printed"], slow["ours"], slow["agrees"], fine["agrees"]) == (0.5, 1.0, False, True)


ENV = RankEnvironment(rank=0, world_size=1, local_rank=0)


def command_spec(template: str, **layout: int) -> TrialSpec:
    return spec_of("command", trainer={"script": None, "template": template}, **layout)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('step')\n")
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def test_an_edited_script_is_another_program(script):
    spec = spec_of("megatron-lm", trainer={"script": str(script), "patterns": {}})
    before, first = fingerprint(spec, ENV), digest(script)
    assert before["scripts"] == {str(script): first}
    script.write_text("import time\ntime.sleep(0.5)\nprint('step')\n")
    now = fingerprint(spec, ENV)
    assert not are_comparable(before, now)
    change = program_change(before, now)
    assert all(part in change for part in (str(script), first[:12], digest(script)[:12]))


def test_of_a_command_the_program_and_its_script_are_hashed_and_no_data(script, tmp_path):
    start, tokens, settings = tmp_path / "start.sh", tmp_path / "tokens.bin", tmp_path / "settings.json"
    start.write_text('#!/bin/sh\nexec "$@"\n')
    start.chmod(0o700)
    tokens.write_bytes(b"\0\1" * 50)
    settings.write_text("{}")
    command = f"{start} {sys.executable} --data {tokens} {script} --settings {settings} {tmp_path}"
    assert fingerprint(command_spec(command), ENV)["scripts"] == {str(p): digest(p) for p in (start, script)}
    assert "scripts" not in fingerprint(command_spec("{python} -m train --data train.py"), ENV)


def test_layouts_of_one_search_are_comparable_and_a_script_that_cannot_be_read_is_unknown(script, tmp_path):
    template = f"{{python}} {script} --mb {{micro_batch_size}} --out {{attempt_folder}}/out"
    one, two = (fingerprint(command_spec(template, micro_batch_size=size), ENV) for size in (1, 2))
    assert one["command"] == f"'{{python}}' {script} --mb 1 --out '{{attempt_folder}}/out'"
    assert one["command"] != two["command"]
    assert are_comparable(one, two)
    spec = spec_of("accelerate", trainer={"script": str(tmp_path / "gone.py"), "patterns": {}})
    assert "scripts" not in fingerprint(spec, ENV)
