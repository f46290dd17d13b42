"""The trial program with one planted fault: `python -m tests.trials.train.faulty_program FAULT SPEC_PATH`."""

from __future__ import annotations

import os
import sys

from trials.train.program import main


def fail_in_the_third_step_of_rank_1() -> None:
    from trials.train.loop import TrainingLoop

    original = TrainingLoop._timed_step

    def timed_step(self, number):
        if number == 3 and os.environ["RANK"] == "1":
            raise ZeroDivisionError("planted in rank 1")
        return original(self, number)

    TrainingLoop._timed_step = timed_step  # type: ignore[method-assign]


def leave_out_a_layer() -> None:
    from trials.train import model

    model.stage_layers = lambda shape, stages: (shape.num_layers - 1,)


def train_every_sample_twice() -> None:
    import torch

    from trials.train.data import Batch, SyntheticData

    original = SyntheticData.batch

    def batch(self, step):
        once = original(self, step)
        return Batch(torch.cat([once.ids] * 2), torch.cat([once.targets] * 2))

    SyntheticData.batch = batch  # type: ignore[method-assign]


def lose_the_loss() -> None:
    from trials.train import torch_engine

    original = torch_engine.TorchEngine._accumulate
    torch_engine.TorchEngine._accumulate = lambda self, batch: original(self, batch) * float("nan")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    main(sys.argv[2:])
