"""A training script that trains nothing and logs like a real one, with its rank and options.

`FAKE_FAULT` in its environment, or an option `--fault NAME`, makes one thing go wrong. It is a separate program:
standard library only, nothing of Parlay's.
"""

from __future__ import annotations

import array
import base64
import fcntl
import json
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
OPTIONS = dict(zip(sys.argv[1:], [*sys.argv[2:], ""], strict=False))
FAULT = OPTIONS.get("--fault", "")
STEP_S = 0.02
MEGATRON = (
    " [2026-11-20 17:00:00.123456] iteration {number:8d}/{total:8d} | consumed samples: {samples:12d} |"
    " elapsed time per iteration (ms): {ms:.7f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} |"
    " learning rate: 1.000000E-04 | global batch size: {batch:5d} | lm loss: {loss:.6E} | loss scale: 1.0 |"
    " grad norm: 1.234 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NEOX = (
    " samples/sec: {rate:.3f} | iteration {number:8d}/{total:8d} | elapsed time per iteration (ms): {ms:.1f} |"
    " learning rate: 1.000E-04 | approx flops per GPU: {tflops:.1f}TFLOPS | lm_loss: {loss:.6E} |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NANOTRON = (
    "08/31/2026 14:37:31 [INFO|DP=0|PP=0|TP=0]: iteration: {number} / {total} | consumed_tokens: 1.02K |"
    " elapsed_time_per_iteration_ms: {ms:.3g} | tokens_per_sec: {tokens:.4g} | tokens_per_sec_per_gpu: {tokens:.4g} |"
    " global_batch_size: {batch} | lm_loss: {loss:.3g} | lr: 0.0003 | model_tflops_per_gpu: {tflops:.3g} |"
    " hardware_tflops_per_gpu: {tflops:.3g} | grad_norm: 3.29 | cuda_max_memory_reserved: 5.2G |"
)


def read_configuration() -> str:
    """The format of the steps' lines; a given configuration is added to the options."""
    if name := OPTIONS.get("--config-file"):
        with open(name) as stream:
            config = json.load(stream)
        take("--tensor-model-parallel-size", config["parallelism"]["tp"])
        take("--pipeline-model-parallel-size", config["parallelism"]["pp"])
        tokens = config["tokens"]
        batch = tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * config["parallelism"]["dp"]
        take("--train-iters", tokens["train_steps"])
        take("--micro-batch-size", tokens["micro_batch_size"])
        take("--global-batch-size", batch)
        take("--seq-length", tokens["sequence_length"])
        return NANOTRON
    if text := OPTIONS.get("--megatron_config"):
        config = json.loads(base64.urlsafe_b64decode(text))
        take("--tensor-model-parallel-size", config["model_parallel_size"])
        take("--pipeline-model-parallel-size", config["pipe_parallel_size"])
        take("--train-iters", config["train_iters"])
        take("--micro-batch-size", config["train_micro_batch_size_per_gpu"])
        take("--global-batch-size", config["train_batch_size"])
        return NEOX
    return MEGATRON


def take(name: str, value: int) -> None:
    OPTIONS[name] = str(value)


def option(name: str) -> int:
    return int(OPTIONS[name])


def main() -> None:
    line = read_configuration()
    print(f"rank {RANK} of {WORLD} at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", flush=True)
    if FAULT == "leaves_a_process":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if RANK == 0 and line == MEGATRON:
        print_the_layout()
    meet()
    train(line, WORLD - 1 if line == MEGATRON else 0)


def print_the_layout() -> None:
    tensor, pipeline = option("--tensor-model-parallel-size"), option("--pipeline-model-parallel-size")
    if FAULT == "another_layout":
        tensor = 1
    data = WORLD // (tensor * pipeline)
    print(
        f"using world size: {WORLD}, data-parallel size: {data}, context-parallel size: 1, "
        f"hierarchical context-parallel sizes: None, tensor-model-parallel size: {tensor}, "
        f"pipeline-model-parallel size: {pipeline}",
        flush=True,
    )
    steps = option("--global-batch-size") // (option("--micro-batch-size") * data)
    print(f"setting number of microbatches to constant {steps}", flush=True)


def meet() -> None:
    """Wait until all ranks have started and their output was read, as a real training would."""
    while num_unread_bytes() > 0:
        time.sleep(0.005)
    Path(f"met-{RANK}").touch()  # in the folder that all ranks share
    while not all(Path(f"met-{rank}").exists() for rank in range(WORLD)):
        time.sleep(0.005)


def num_unread_bytes() -> int:
    """Number of unread bytes in the output pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(sys.stdout.fileno(), termios.FIONREAD, count)
    return count[0]


def train(line: str, telling: int) -> None:
    total, batch = option("--train-iters"), option("--global-batch-size")
    for number in range(1, total + 1):
        go_wrong(number)
        ms = 500.0 if number == 1 else 100.0 + (number % 3) + 50.0 * (option("--micro-batch-size") > 1)
        time.sleep(ms / 1e3 if "--honest" in OPTIONS else STEP_S)
        if telling == RANK:
            loss = float("nan") if FAULT == "nan" and number == 4 else 10.0 - number / 100
            values = {"number": number, "total": total, "samples": number * batch, "ms": ms, "loss": loss}
            rate = 1e3 * batch / ms
            tokens = rate * int(OPTIONS.get("--seq-length", 1))
            print(line.format(**values, tflops=0.0, batch=batch, rate=rate, tokens=tokens), flush=True)
        if number == 2 and line == MEGATRON:
            print(
                f"[Rank {RANK}] (after 2 iterations) memory (MB) | allocated: 1024.0 | max allocated: 2048.0 |"
                f" reserved: 2560.0 | max reserved: {3072.0 + RANK}",
                flush=True,
            )
    if telling != RANK:
        time.sleep(600)  # in a collective with the one that tells, until somebody ends it


def go_wrong(number: int) -> None:
    if number != 3:
        return
    if FAULT == "oom" and RANK == 0:
        raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    if FAULT == "oom":
        time.sleep(600)  # in a collective, until somebody ends it
    if FAULT == "dead_rank" and RANK == 1:
        os.kill(os.getpid(), 9)
    if FAULT in ("hang", "dead_rank"):
        time.sleep(600)
    if FAULT == "broken" and RANK == 0:
        raise ValueError("the optimizer has no parameters")
    if FAULT == "broken":
        raise RuntimeError("Connection closed by peer [127.0.0.1]:29501")
    if FAULT == "ends_early":
        sys.exit(0)
    if FAULT == "endless":
        while True:
            sys.stdout.write("na na " * 10_000)
            sys.stdout.flush()


if __name__ == "__main__":
    main()
