"""The trial program with one planted fault: `python -m tests.trials.train.faulty_program FAULT SPEC_PATH`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from trials.ranks.watchdog import hang_limit_s
from trials.train.program import main

if TYPE_CHECKING:
    from trials.train.measurement.loop import TrainingLoop


class PlannedClock:
    """Stand-in for the `time` of the loop and of its waits, advanced by the fault alone, so that other load on the
    machine affects no step."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s


def _plan_the_clock() -> PlannedClock:
    from trials.train.measurement import loop
    from trials.train.parallel import collective_waits

    clock = PlannedClock()
    loop.time = collective_waits.time = clock  # type: ignore[assignment]
    return clock


def fail_in_the_third_step_of_rank_1() -> None:
    def fail(loop: TrainingLoop) -> None:
        raise ZeroDivisionError("planted in rank 1")

    _before_a_step(3, {1: fail})


def run_out_of_memory_while_rank_1_builds() -> None:
    from trials.train import trial_run

    original = trial_run.build_engine

    def build_engine(training, world):
        if os.environ["RANK"] == "1":
            _take_memory()
        return original(training, world)

    trial_run.build_engine = build_engine


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

    original, clock, steps = TorchEngine.train_step, _plan_the_clock(), count(1)

    def train_step(self, batch):
        is_slow = next(steps) >= 14 and os.environ["RANK"] == "1"
        clock.now_s += 0.5 if is_slow else 0.01
        return original(self, batch)

    TorchEngine.train_step = train_step  # type: ignore[method-assign]


def be_slow_in_rank_1() -> None:
    """Rank 1, on a node of its own name, is busy with something else for 30 ms of each step."""
    from trials.train.measurement.loop import TrainingLoop

    original, is_slow = TrainingLoop._shortened, os.environ["RANK"] == "1"
    os.environ["SLURMD_NODENAME"] = "slow-node" if is_slow else "other-node"

    def shortened(self, batch, micro_batches):
        until = time.perf_counter() + 0.03
        while is_slow and time.perf_counter() < until:
            pass
        return original(self, batch, micro_batches)

    TrainingLoop._shortened = shortened  # type: ignore[method-assign]


def be_at_the_time_limit_in_the_twentieth_step() -> None:
    """Reach the time limit, by the age of the process."""
    from trials.train.measurement import loop

    age_s, asked = loop.process_age_s, count(1)
    loop.process_age_s = lambda: age_s() + (600.0 if next(asked) > 20 else 0.0)


def find_its_folder_stale_for_a_moment() -> None:
    """Simulate a stale NFS handle when the fifth step is written."""
    import errno

    from trials.measurement.step_log import MetricsWriter

    original, written = MetricsWriter.write, count(1)

    def write(self, record):
        if next(written) == 5:
            raise OSError(errno.ESTALE, "Stale file handle")
        original(self, record)

    MetricsWriter.write = write  # type: ignore[method-assign]


def leave_the_choice_of_experts_to_the_router() -> None:
    from search_spaces.routing import ROUTERS_CHOICE
    from trials.train.engines.engine import TrainingConfig
    from trials.train.model.chunk import ChunkExecution

    def chunk_arguments(self, index, world):
        *others, execution = original(self, index, world)
        return *others, ChunkExecution(execution.recompute, execution.compile_blocks, ROUTERS_CHOICE)

    original = TrainingConfig.chunk_arguments
    TrainingConfig.chunk_arguments = chunk_arguments  # type: ignore[method-assign]


def use_a_gpu_that_somebody_else_uses() -> None:
    import torch

    from trials.train.parallel import device

    device.MEMORY_RELEASE_S = 0.5
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.set_device = lambda device: None
    torch.cuda.mem_get_info = lambda device: (40 * 2**30, 80 * 2**30)


def _before_a_step(step: int, acts: Mapping[int, Callable[[TrainingLoop], None]]) -> None:
    """Call `work` on each rank before this step."""
    from trials.train.measurement.loop import TrainingLoop

    original, act = TrainingLoop._timed_step, acts.get(int(os.environ["RANK"]))

    def timed_step(self, number):
        if number == step and act is not None:
            act(self)
        return original(self, number)

    TrainingLoop._timed_step = timed_step  # type: ignore[method-assign]


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

    original = SyntheticData.batch

    def batch(self, step):
        once = original(self, step)
        return Batch(torch.cat([once.ids] * 2), torch.cat([once.targets] * 2))

    SyntheticData.batch = batch  # type: ignore[method-assign]


def lose_the_loss() -> None:
    from trials.train.engines import torch_engine

    original = torch_engine.TorchEngine._accumulate
    torch_engine.TorchEngine._accumulate = lambda self, *batch: original(self, *batch) * float("nan")  # type: ignore[method-assign]


def leak_four_mib_a_step() -> None:
    from trials.train.engines.torch_engine import TorchEngine

    original, kept = TorchEngine.train_step, []

    def train_step(self, batch):
        kept.append(b"\1" * 2**22)
        return original(self, batch)

    TorchEngine.train_step = train_step  # type: ignore[method-assign]


def take_every_step_for_a_long_one() -> None:
    """By its clock a step takes as long as its number of micro-batches, plus a little that differs from step to
    step."""
    from trials.measurement import protocol
    from trials.train.measurement.loop import TrainingLoop

    protocol.LONGEST_STEP_S = float("-inf")
    original, clock, steps = TrainingLoop._shortened, _plan_the_clock(), count(1)

    def shortened(self, batch, micro_batches):
        clock.now_s += 0.05 * micro_batches + 0.001 * (next(steps) * 7 % 5)
        return original(self, batch, micro_batches)

    TrainingLoop._shortened = shortened  # type: ignore[method-assign]


def note_late_imports() -> None:
    """Write what this rank has imported of torch and DeepSpeed since all should be there, whether it has torch's
    compiler, and whether mlflow."""
    from trials.train import program

    leave, imported = program.exit_at_once, set[str]()

    def note_and_leave(code):
        late = sorted(name for name in set(sys.modules) - imported if name.partition(".")[0] in ("torch", "deepspeed"))
        found = {
            "late": late,
            "has_compiler": "torch._dynamo" in sys.modules,
            "has_mlflow": bool(sys.modules.get("mlflow")),
        }
        (Path(sys.argv[2]).parent / f"imports-{os.environ['RANK']}.json").write_text(json.dumps(found))
        leave(code)

    program.exit_at_once = note_and_leave  # type: ignore[assignment]
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from trials.train import trial_run

    import_training = trial_run.import_training

    def import_and_note(layout, on_cpu):
        import_training(layout, on_cpu)
        imported.update(sys.modules)

    trial_run.import_training = import_and_note


def have_a_profiler_that_does_not_start() -> None:
    import torch.profiler

    def refuse(*arguments, **options):
        raise RuntimeError("planted: no profiler")

    torch.profiler.profile = refuse  # type: ignore[assignment, misc]


def lose_rank_1_while_it_is_profiled() -> None:
    from trials.train.measurement.loop import TrainingLoop

    def train(self, micro_batches):
        os._exit(7)

    if os.environ["RANK"] == "1":
        TrainingLoop.train = train  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # which the program itself sets, once a fault may have imported torch
    globals()[sys.argv[1]]()
    main(sys.argv[2:])
