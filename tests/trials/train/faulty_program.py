"""The trial program with one planted fault: `python -m tests.trials.train.faulty_program FAULT SPEC_PATH`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from trials.ranks.watchdog import hang_limit_s
from trials.train.program import main

if TYPE_CHECKING:
    from trials.train.measurement.loop import TrainingLoop

RANK = int(os.environ.get("RANK", "0"))


def in_place_of(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put the decorated function in the place of this one, which it gets as its first argument."""
    original = getattr(owner, name)
    return lambda new: setattr(owner, name, lambda *given, **options: new(original, *given, **options))


class PlannedClock:
    """Stand-in for the `time` of the loop and of its waits, advanced by the fault alone, so that other load on the
    machine affects no step."""

    def __init__(self) -> None:
        from trials.train.measurement import loop
        from trials.train.parallel import collective_waits

        self.now_s = 0.0
        loop.time = collective_waits.time = self  # type: ignore[assignment]

    def perf_counter(self) -> float:
        return self.now_s


def fail_in_the_third_step_of_rank_1() -> None:
    def fail(loop: TrainingLoop) -> None:
        raise ZeroDivisionError("planted in rank 1")

    _before_a_step(3, {1: fail})


def run_out_of_memory_while_rank_1_builds() -> None:
    from trials.train import trial_run

    @in_place_of(trial_run, "build_engine")
    def build_engine(original, training, world):
        if RANK == 1:
            _take_memory()
        return original(training, world)


def run_out_of_memory_in_the_ninth_step_of_rank_1() -> None:
    """Rank 0 waits as in a collective on a GPU, which does not notice that its peer is gone."""
    _before_a_step(9, {0: lambda loop: _sleep_for_ever(), 1: lambda loop: _take_memory()})


def sleep_in_the_third_step_of_rank_1() -> None:
    """Sleep once all but five seconds of the hang limit have passed, by the clocks of both ranks."""

    def wait(loop: TrainingLoop) -> None:
        loop._report.last_progress -= hang_limit_s(loop._spec.measure) - 5.0

    def sleep(loop: TrainingLoop) -> None:
        wait(loop)
        _sleep_for_ever()

    _before_a_step(3, {0: wait, 1: sleep})


def get_slower_from_the_fourteenth_step_on() -> None:
    """By its clock each step of rank 1 then takes half a second, fifty times as long."""
    from trials.train.engines.torch_engine import TorchEngine

    clock, steps = PlannedClock(), count(1)

    @in_place_of(TorchEngine, "train_step")
    def train_step(original, engine, batch):
        clock.now_s += 0.5 if next(steps) >= 14 and RANK == 1 else 0.01
        return original(engine, batch)


def be_slow_in_rank_1() -> None:
    """Rank 1, on a node of its own name, is busy with something else for 30 ms of each step."""
    from trials.train.measurement.loop import TrainingLoop

    os.environ["SLURMD_NODENAME"] = "slow-node" if RANK == 1 else "other-node"

    @in_place_of(TrainingLoop, "_shortened")
    def shortened(original, loop, batch, micro_batches):
        until = time.perf_counter() + 0.03
        while RANK == 1 and time.perf_counter() < until:
            pass
        return original(loop, batch, micro_batches)


def be_at_the_time_limit_in_the_twentieth_step() -> None:
    """Reach the time limit, by the age of the process."""
    from trials.train.measurement import loop

    asked = count(1)

    @in_place_of(loop, "process_age_s")
    def process_age_s(original):
        return original() + (600.0 if next(asked) > 20 else 0.0)


def find_its_folder_stale_for_a_moment() -> None:
    """Simulate a stale NFS handle when the fifth step is written."""
    import errno

    from trials.measurement.step_log import MetricsWriter

    written = count(1)

    @in_place_of(MetricsWriter, "write")
    def write(original, writer, record):
        if next(written) == 5:
            raise OSError(errno.ESTALE, "Stale file handle")
        original(writer, record)


def leave_the_choice_of_experts_to_the_router() -> None:
    from search_spaces.routing import ROUTERS_CHOICE
    from trials.train.engines.engine import TrainingConfig
    from trials.train.model.chunk import ChunkExecution

    @in_place_of(TrainingConfig, "chunk_arguments")
    def chunk_arguments(original, training, index, world):
        *others, execution = original(training, index, world)
        return *others, ChunkExecution(execution.recompute, execution.compile_blocks, ROUTERS_CHOICE)


def use_a_gpu_that_somebody_else_uses() -> None:
    import torch

    from trials.train.parallel import device

    device.MEMORY_RELEASE_S = 0.5
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    torch.cuda.mem_get_info = lambda device: (40 * 2**30, 80 * 2**30)


def _before_a_step(step: int, acts: Mapping[int, Callable[[TrainingLoop], None]]) -> None:
    """Call what `acts` has for this rank before this step."""
    from trials.train.measurement.loop import TrainingLoop

    @in_place_of(TrainingLoop, "_timed_step")
    def timed_step(original, loop, number):
        if number == step and RANK in acts:
            acts[RANK](loop)
        return original(loop, number)


def _sleep_for_ever() -> None:
    while True:
        time.sleep(3600)


def _take_memory() -> None:
    """Allocate eight GiB at once, beyond any limit of these tests; the allocator refuses and nothing is taken."""
    import torch

    torch.empty(2**31, dtype=torch.float32)


def train_every_sample_twice() -> None:
    import torch

    from trials.train.data import Batch, SyntheticData

    @in_place_of(SyntheticData, "batch")
    def batch(original, data, step):
        once = original(data, step)
        return Batch(torch.cat([once.ids] * 2), torch.cat([once.targets] * 2))


def lose_the_loss() -> None:
    from trials.train.engines.torch_engine import TorchEngine

    @in_place_of(TorchEngine, "_accumulate")
    def accumulate(original, *given):
        return original(*given) * float("nan")


def leak_four_mib_a_step() -> None:
    from trials.train.engines.torch_engine import TorchEngine

    kept = []

    @in_place_of(TorchEngine, "train_step")
    def train_step(original, engine, batch):
        kept.append(b"\1" * 2**22)
        return original(engine, batch)


def take_every_step_for_a_long_one() -> None:
    """By its clock a step takes as long as its number of micro-batches, plus a little that differs from step to
    step."""
    from trials.measurement import protocol
    from trials.train.measurement.loop import TrainingLoop

    protocol.LONGEST_STEP_S = float("-inf")
    clock, steps = PlannedClock(), count(1)

    @in_place_of(TrainingLoop, "_shortened")
    def shortened(original, loop, batch, micro_batches):
        clock.now_s += 0.05 * micro_batches + 0.001 * (next(steps) * 7 % 5)
        return original(loop, batch, micro_batches)


def lose_rank_1_while_it_is_profiled() -> None:
    from trials.train.measurement.loop import TrainingLoop

    @in_place_of(TrainingLoop, "train")
    def train(original, loop, micro_batches):
        return os._exit(7) if RANK == 1 else original(loop, micro_batches)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # which the program itself sets, once a fault may have imported torch
    globals()[sys.argv[1]]()
    main(sys.argv[2:])
