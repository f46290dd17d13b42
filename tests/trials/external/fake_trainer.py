"""A training script that trains nothing and logs like a real one, with its rank and options.

`FAKE_FAULT` in its environment, or an option `--fault NAME`, makes one thing go wrong. It is a separate program:
standard library only, nothing of Parlay's.
"""

from __future__ import annotations

import array
import fcntl
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


def option(name: str) -> int:
    return int(OPTIONS[name])


def main() -> None:
    print(f"rank {RANK} of {WORLD} at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", flush=True)
    if FAULT == "leaves_a_process":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if RANK == 0:
        print_the_layout()
    meet()
    train(telling=WORLD - 1)


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


def train(telling: int) -> None:
    total, batch = option("--train-iters"), option("--global-batch-size")
    for number in range(1, total + 1):
        go_wrong(number)
        ms = 500.0 if number == 1 else 100.0 + (number % 3) + 50.0 * (option("--micro-batch-size") > 1)
        time.sleep(ms / 1e3 if "--honest" in OPTIONS else STEP_S)
        if telling == RANK:
            loss = float("nan") if FAULT == "nan" and number == 4 else 10.0 - number / 100
            values = {"number": number, "total": total, "samples": number * batch, "ms": ms, "loss": loss}
            print(MEGATRON.format(**values, tflops=0.0, batch=batch), flush=True)
        if number == 2:
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
