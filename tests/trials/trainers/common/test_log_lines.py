from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trials.trainers.specs import spec_of
from trials.trainers.common.log_lines import LONGEST_LINE, command_format, pattern_problems, read_line
from trials.trainers.common.trainer_log import LineSplitter, OutputTail, StepReader
from trials.trainers.registry import LOG_FORMATS

# As the trainers' own format strings write them.
MEGATRON_LM = (
    " [2026-11-20 17:00:00.123456] iteration        5/      12 | consumed samples:          640 | elapsed time per"
    " iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 98.7 | learning rate: 1.000000E-04 | global batch"
    " size:   128 | lm loss: 1.050000E+01 | loss scale: 1.0 | grad norm: 2.345 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |"
)
MEGATRON_MEMORY = (
    "[Rank 3] (after 2 iterations) memory (MB) | allocated: 1024.00 | max allocated: 2048.00 | reserved: 2560.00 |"
    " max reserved: 3072.00"
)
MEGATRON_WORLD = (
    "using world size: 64, data-parallel size: 4, context-parallel size: 1, hierarchical context-parallel sizes: None,"
    " tensor-model-parallel size: 8, pipeline-model-parallel size: 2"
)
# Printed by a training of GPT-3 175B on 64 A100, tensor 8 x pipeline 8, sequences of 2048 tokens.
MEGATRON_DEEPSPEED = (
    " iteration        6/      10 | consumed samples:         9216 | consumed tokens:     18874368 | elapsed time per"
    " iteration (ms): 347319.2 | learning rate: 1.392E-05 | global batch size:  1536 | lm loss: 1.100214E+01 | loss"
    " scale: 4294967296.0 | grad norm: 0.000 | actual seqlen:  2048 | number of skipped iterations:   0 | number of nan"
    " iterations:   0 | samples per second: 4.422 | tokens per gpu per second (tgs): 141.518 | TFLOPs: 152.20 |"
)
NEOX = (
    " samples/sec: 55.100 | iteration        5/      12 | elapsed time per iteration (ms): 580.2 | learning rate:"
    " 1.000E-04 | approx flops per GPU: 61.2TFLOPS | lm_loss: 1.010000E+01 | number of skipped iterations:   0 | number"
    " of nan iterations:   0 |"
)
NANOTRON = (
    "08/31/2026 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: 2 / 15 | consumed_tokens: 1.02K |"
    " elapsed_time_per_iteration_ms: 5.35K | tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: 5.4K | global_batch_size:"
    " 1.02K | lm_loss: 5.29 | lr: 0.0003 | model_tflops_per_gpu: 0.00744 | hardware_tflops_per_gpu: 0.00744 |"
    " grad_norm: 3.29 | cuda_memory_allocated: 67.4M | cuda_max_memory_reserved: 5.2G | hd_total_memory_tb: 2.13T"
)
DEEPSPEED = (
    "[2026-11-20 17:54:38,318] [INFO] [timer.py:264:stop] epoch=0/micro_step=16/global_step=4,"
    " RunningAvgSamplesPerSec=422.3578679723836, CurrSamplesPerSec=356.1697650691015, MemAllocated=0.34GB,"
    " MaxMemAllocated=0.36GB"
)
DEEPSPEED_PIPELINE = "steps: 2 loss: 5.5322 iter time (s): 0.047 samples/sec: 169.548"


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        (
            *("megatron-lm", MEGATRON_LM),
            "iteration 5, step_time_s 1.2345, loss 10.5, grad_norm 2.345, global_batch_size 128, consumed_samples 640,"
            " tflops 98.7, skipped 0, nan 0",
        ),
        (
            *("megatron-deepspeed", MEGATRON_DEEPSPEED),
            "iteration 6, step_time_s 347.3192, loss 11.00214, grad_norm 0, global_batch_size 1536, consumed_samples"
            " 9216, tflops 152.2, samples_per_sec 4.422, tokens_per_sec_per_gpu 141.518, skipped 0, nan 0",
        ),
        (
            *("gpt-neox", NEOX),
            "iteration 5, step_time_s 0.5802, loss 10.1, tflops 61.2, samples_per_sec 55.1, skipped 0, nan 0",
        ),
        (
            *("nanotron", NANOTRON),
            "iteration 2, step_time_s 5.35, loss 5.29, grad_norm 3.29, tokens_per_sec 43200, tokens_per_sec_per_gpu"
            " 5400, tflops 0.00744, memory_gib 4.842877388",
        ),
        ("deepspeed", DEEPSPEED, "iteration 4, samples_per_sec 356.1697650691015, memory_allocated_gib 0.36"),
        (
            "deepspeed-pipeline",
            DEEPSPEED_PIPELINE,
            "iteration 2, loss 5.5322, step_time_s 0.047, samples_per_sec 169.548",
        ),
    ],
)
def test_a_step_is_read_as_each_trainer_writes_it(name, line, said):
    found = read_line(line, LOG_FORMATS[name])
    assert found.is_step
    assert found.values == pytest.approx({each.split()[0]: float(each.split()[1]) for each in said.split(", ")})


def test_half_a_number_and_one_that_cannot_be_are_left_out_and_units_count():
    line = NANOTRON.replace("global_batch_size: 1.02K", "global_batch_size: 512")
    assert read_line(line, LOG_FORMATS["nanotron"]).values["global_batch_size"] == 512
    cut = MEGATRON_LM.index("1234.5") + 2
    mixed = MEGATRON_LM[:cut] + MEGATRON_MEMORY + MEGATRON_LM[cut:]
    assert not read_line(mixed, LOG_FORMATS["megatron-lm"]).is_step
    line = MEGATRON_LM.replace("1.050000E+01", "NAN").replace("98.7", "-98.7")
    values = read_line(line, LOG_FORMATS["megatron-lm"]).values
    assert math.isnan(values["loss"])
    assert "tflops" not in values
    assert not read_line("x" * LONGEST_LINE + MEGATRON_LM, LOG_FORMATS["megatron-lm"]).is_step
    for unit, tflops in (("G", 0.0612), ("", 61.2e-12), ("P", 61200.0)):
        line = read_line(NEOX.replace("61.2TFLOPS", f"61.2{unit}FLOPS"), LOG_FORMATS["gpt-neox"])
        assert line.values["tflops"] == pytest.approx(tflops)


@pytest.mark.parametrize("name", LOG_FORMATS)
@pytest.mark.parametrize(
    "line", ["", "loading data", "iteration 5", "| | |", "steps: 3", "elapsed time per iteration (ms): 12.0 |"]
)
def test_other_lines_report_no_step(name, line):
    assert not read_line(line, LOG_FORMATS[name]).is_step


@pytest.mark.parametrize(
    ("name", "line"), [("megatron-lm", MEGATRON_LM), ("nanotron", NANOTRON), ("megatron-deepspeed", MEGATRON_DEEPSPEED)]
)
def test_a_line_cut_anywhere_never_gives_half_a_number_and_colours_hide_none(name, line):
    whole = read_line(line, LOG_FORMATS[name])
    for end in range(len(line)):
        found = read_line(line[:end], LOG_FORMATS[name])
        assert found.values.items() <= whole.values.items(), line[:end]
    coloured = "\x1b[1;32m" + line.replace("| ", "\x1b[0m| \x1b[38;5;12m").replace(": ", ":\x1b[36m ") + "\x1b[0m\x1b[K"
    assert read_line(coloured, LOG_FORMATS[name]) == whole


def test_a_commands_own_patterns_say_what_a_step_is():
    log_format = command_format({"step_time_ms": r"took (\d+) ms", "loss": r"loss=(\S+)", "memory_gib": r"mem (\S+)"})
    values = read_line("step 3 took 250 ms loss=2.5 mem 3", log_format).values
    assert values == {"step_time_s": 0.25, "loss": 2.5, "memory_gib": 3}
    assert not read_line("mem 3", log_format).is_step
    assert read_line("mem 3", log_format).values == {"memory_gib": 3}
    rates = command_format({"tokens_per_sec": r"(\d+) tok/s", "loss": r"loss=(\S+)"})
    assert read_line("loss=1 at 100 tok/s", rates).is_step


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        ({"step_time_s": r"(\d+"}, "is not a regular expression: missing )"),
        ({"step_time_s": r"\d+"}, "has 0 groups"),
        ({"step_time_s": r"(\d+)(\w)"}, "has 2 groups"),
        ({"step_time_s": r"(\d+)", "speed": r"(\d+)"}, "is an unknown metric"),
        ({"loss": r"(\d+)"}, "do not match a step's time"),
    ],
)
def test_patterns_that_cannot_be_used_are_named(patterns, message):
    [problem] = pattern_problems(patterns)
    assert message in problem.message
    assert problem.fix


LOGS = Path(__file__).parents[1] / "megatron_lm" / "logs"
IN_FP32 = {"precision": "fp32", "attention_kernel": "math"}
INTERLEAVED = {**IN_FP32, "data_parallel": 1, "pipeline_parallel": 2, "virtual_pipeline_stages": 2}
FSDP = {**IN_FP32, "data_parallel": 2, "grad_accum_steps": 2, "zero_stage": 3}


@pytest.mark.parametrize(
    ("log", "layout", "printed", "peak_mib"),
    [
        (
            *("core_v0.16.1-interleaved", INTERLEAVED),
            [(0.2483, 6.250303, 2.073), (0.1837, 6.260374, 2.062), (0.1151, 6.253073, 1.994)],
            436.5,
        ),
        (
            *("main-fsdp", FSDP),
            [(0.2063, 6.252232, 1.968), (0.1557, 6.269662, 2.241), (0.1127, 6.260708, 1.92)],
            450.91,
        ),
    ],
)
def test_what_both_versions_of_megatron_lm_print_is_read(log, layout, printed, peak_mib):
    """Seconds, loss and gradient norm of three iterations; time and loss of the second are means of two."""
    spec = spec_of("megatron-lm", **layout)
    reader = StepReader(LOG_FORMATS["megatron-lm"], spec)
    steps = [reader.feed(line) for line in (LOGS / f"{log}.txt").read_text().splitlines()]
    found = [(round(step.step_time_s, 4), step.loss, step.grad_norm) for step in steps if step is not None]
    assert found == printed
    degrees = {"data_parallel": spec.layout.data_parallel, "pipeline_parallel": spec.layout.pipeline_parallel}
    batch = {"micro_batches_per_step": spec.layout.grad_accum_steps, "global_batch_size": 4, "vocab_size": 512}
    assert reader.proof == {"world_size": 2, "tensor_parallel": 1, **degrees, **batch}
    assert reader.peak_memory_gib == reader.peak_memory_allocated_gib == peak_mib / 1024


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
    assert (step.iteration, step.step_time_s, step.samples, step.loss, step.grad_norm) == (5, 1.2345, 128, 10.5, 2.345)
    assert (step.tflops, step.has_nan) == (98.7, False)
    for old, new in (("nan iterations:   0", "nan iterations:   1"), ("1.050000E+01", "NAN"), ("2.345", "inf")):
        assert reader().feed(MEGATRON_LM.replace(old, new)).has_nan, new
    log = reader()
    found = [log.feed(iteration(number)) for number in (1, 1, 2, 4, 3, 5)]
    assert [step and step.iteration for step in found] == [1, None, 2, 4, None, 5]
    log = reader()
    skipped = iteration(1).replace("skipped iterations:   0", "skipped iterations:   1")
    assert log.feed(skipped) is None
    assert (log.skipped, log.feed(iteration(2)).iteration) == (1, 2)


def test_times_and_rates_follow_from_what_is_reported():
    step = reader("deepspeed", batch=712).feed(DEEPSPEED)
    assert step.step_time_s == pytest.approx(712 / 356.1697650691015)
    tokens = StepReader(command_format({"tokens_per_sec": r"(\d+) tok/s"}), SPEC).feed("640 tok/s")
    assert tokens.step_time_s == pytest.approx(SPEC.global_batch_size * SPEC.model.seq_length / 640)
    step = reader("megatron-deepspeed", batch=1536).feed(MEGATRON_DEEPSPEED)
    assert step.tokens_per_sec == pytest.approx(141.518 * SPEC.num_gpus)
    assert step.samples_per_sec == 4.422
    log = StepReader(command_format({"step_time_s": r"took (\S+)"}), SPEC)
    assert [log.feed("took 0.5").iteration for _ in range(3)] == [1, 2, 3]
    assert log.feed("took 0") is None
    assert log.feed("took nan") is None


def test_layout_and_memory_are_kept_from_wherever_they_are_reported():
    log = reader()
    for line in (MEGATRON_WORLD, MEGATRON_MEMORY, "setting number of micro-batches to constant 8", MEGATRON_LM):
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
    assert words(["step 1", "RuntimeError: The server socket has failed to listen: EADDRINUSE"]).port_was_taken
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
    lost = words(["CUDA error: out of memory", *PEER]).cause() or ""
    assert lost.startswith("CUDA error: out of memory\nTraceback")
