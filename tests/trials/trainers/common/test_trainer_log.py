from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trials.trainers.common.test_log_lines import (
    DEEPSPEED,
    MEGATRON_DEEPSPEED,
    MEGATRON_LM,
    MEGATRON_MEMORY,
    MEGATRON_WORLD,
)
from tests.trials.trainers.specs import spec_of
from trials.trainers.common.log_lines import LONGEST_LINE, command_format
from trials.trainers.common.trainer_log import LineSplitter, OutputTail, StepReader
from trials.trainers.registry import LOG_FORMATS

SPEC = spec_of("megatron-lm")
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "pretrain_gpt.py", line 7, in <module>',
    "    pretrain()",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
]
PEER = [*TRACEBACK[:3], "torch.distributed.DistBackendError: NCCL error in ProcessGroupNCCL.cpp: remote process exited"]


def iteration(number: int) -> str:
    return MEGATRON_LM.replace("       5/", f"{number:8d}/")


def reader(name: str = "megatron-lm", batch: int = 128) -> StepReader:
    return StepReader(LOG_FORMATS[name], replace(SPEC, global_batch_size=batch))


def test_lines_come_whole_however_the_bytes_come_and_one_without_end_in_part():
    splitter = LineSplitter()
    assert list(splitter.feed(b"one\ntw")) == ["one"]
    assert list(splitter.feed(b"o\r\nthree")) == ["two", ""]
    assert splitter.last() == "three"
    assert splitter.last() == ""
    assert list(LineSplitter().feed(b"10%\r20%\r")) == ["10%", "20%"]
    assert list(LineSplitter().feed(b"loss \xff\xfe 3\n")) == ["loss �� 3"]
    splitter = LineSplitter()
    for _ in range(100):
        assert list(splitter.feed(b"na " * 10_000)) == []
    [line] = splitter.feed(b"\n")
    assert len(line) == LONGEST_LINE
    assert list(splitter.feed(b"next\n")) == ["next"]


@pytest.mark.slow
@given(st.lists(st.binary(max_size=30), max_size=10))
def test_it_makes_no_difference_where_the_bytes_are_cut(parts):
    in_parts, at_once = LineSplitter(), LineSplitter()
    lines = [line for part in parts for line in in_parts.feed(part)]
    assert lines == list(at_once.feed(b"".join(parts)))
    assert in_parts.last() == at_once.last()


def test_a_step_is_what_its_line_says_and_counts_once():
    step = reader().feed(MEGATRON_LM)
    assert step is not None
    assert (step.iteration, step.step_time_s, step.samples, step.loss, step.grad_norm) == (5, 1.2345, 128, 10.5, 2.345)
    assert (step.tflops, step.has_nan) == (98.7, False)
    log = reader()
    found = [log.feed(iteration(number)) for number in (1, 1, 2, 4, 3, 5)]
    assert [step and step.iteration for step in found] == [1, None, 2, 4, None, 5]
    log = reader()
    skipped = iteration(1).replace("skipped iterations:   0", "skipped iterations:   1")
    assert log.feed(skipped) is None
    assert (log.skipped, log.feed(iteration(2)).iteration) == (1, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [("nan iterations:   0", "nan iterations:   1"), ("1.050000E+01", "NAN"), ("norm: 2.345", "norm: inf")],
)
def test_a_training_gone_mad_is_seen(old, new):
    step = reader().feed(MEGATRON_LM.replace(old, new))
    assert step is not None
    assert step.has_nan


def test_times_and_rates_follow_from_what_is_reported():
    step = reader("deepspeed", batch=712).feed(DEEPSPEED)
    assert step is not None
    assert step.step_time_s == pytest.approx(712 / 356.1697650691015)
    tokens = StepReader(command_format({"tokens_per_sec": r"(\d+) tok/s"}), SPEC).feed("640 tok/s")
    assert tokens is not None
    assert tokens.step_time_s == pytest.approx(SPEC.global_batch_size * SPEC.model.seq_length / 640)
    step = reader("megatron-deepspeed", batch=1536).feed(MEGATRON_DEEPSPEED)
    assert step is not None
    assert step.tokens_per_sec == pytest.approx(141.518 * SPEC.num_gpus)
    assert step.samples_per_sec == 4.422
    log = StepReader(command_format({"step_time_s": r"took (\S+)"}), SPEC)
    assert [log.feed("took 0.5").iteration for _ in range(3)] == [1, 2, 3]
    assert log.feed("took 0") is None
    assert log.feed("took nan") is None


def test_layout_and_memory_are_kept_from_wherever_they_are_reported():
    log = reader()
    for line in (MEGATRON_WORLD, MEGATRON_MEMORY, "setting number of microbatches to constant 8", MEGATRON_LM):
        log.feed(line)
    log.note(MEGATRON_MEMORY.replace("max reserved: 3072.00", "max reserved: 4096.00"))
    log.note(iteration(9))
    degrees = {"world_size": 64, "data_parallel": 4, "tensor_parallel": 8, "pipeline_parallel": 2}
    assert log.proof == degrees | {"micro_batches_per_step": 8, "global_batch_size": 128}
    assert (log.peak_memory_gib, log.peak_memory_allocated_gib) == (4.0, 2.0)
    assert log.feed(iteration(6)).iteration == 6  # what was only noted was no step


def words(lines: list[str]) -> OutputTail:
    last = OutputTail()
    for line in lines:
        last.feed(line)
    return last


def test_the_first_traceback_that_is_no_echo_is_the_cause_and_a_taken_port_is_seen():
    assert words([*PEER, *TRACEBACK]).cause() == "\n".join(TRACEBACK)
    assert words(PEER).cause() == "\n".join(PEER)
    assert words(["nothing", "to say"]).cause() is None
    assert words(["RuntimeError: The server socket has failed to listen: EADDRINUSE"]).port_was_taken
    assert words([str(n) for n in range(1000)]).tail(3) == "997\n998\n999"


@pytest.mark.parametrize("written", ["{}", "[rank3]: {}", "\x1b[35m{}\x1b[0m"])
def test_a_cause_is_kept_however_much_is_said_after_it_and_however_it_is_marked(written):
    lines = [written.format(line) for line in TRACEBACK] + [f"line {n}" for n in range(5000)]
    assert words(lines).cause() == "\n".join(TRACEBACK)


def test_out_of_memory_is_seen_with_and_without_a_traceback():
    assert words(TRACEBACK).ran_out_of_memory
    only_said = words(["terminate called after throwing an instance of 'std::bad_alloc'", "what(): std::bad_alloc"])
    assert only_said.ran_out_of_memory
    assert "std::bad_alloc" in (only_said.cause() or "")
    assert not words(["set PYTORCH_CUDA_ALLOC_CONF to avoid running out of memory"]).ran_out_of_memory
    lost = words(["CUDA error: out of memory", *PEER]).cause()
    assert lost is not None
    assert lost.startswith("CUDA error: out of memory\nTraceback")
