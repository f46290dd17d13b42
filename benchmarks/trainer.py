"""Benchmark of the trainer: a step of one rank over that of a plain PyTorch GPT of the same shape, in turns.

python -m benchmarks.trainer [--rounds 7] [--device cpu|cuda] [--json]

"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.output import arguments_of, show
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.files.folders import AttemptFolder
from trials.measure_rules import MeasureRules
from trials.trial import TrialKind, TrialSpec

Work = Callable[[], object]

MODEL = ModelShape(6, 512, 8, 8, 2048, False, 8192, 256, False, "learned", "layernorm")
SMALL = ModelShape(2, 64, 2, 2, 256, False, 256, 32, False, "learned", "layernorm")
LAYOUT = Layout(micro_batch_size=2, grad_accum_steps=2)
STEPS_A_TURN = 2
ENGINES = ("torch", "deepspeed")


def main() -> None:
    given = arguments_of(__doc__, rounds=7, device="cpu")
    show([step_ratios(given.device, given.rounds)], given.json)


def step_ratios(device: str, rounds: int) -> dict[str, float]:
    """Median step time of each engine over the plain GPT's; the first round warms up and is not counted."""
    with tempfile.TemporaryDirectory(prefix="parlay-benchmark-") as folder:
        contenders = _step_contenders(device, Path(folder))
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds + 1):
            for name, train_step in contenders.items():
                times[name].append(_timed(train_step, device))
    plain = median(times.pop("plain")[1:])
    ratios = {f"step_{name}": median(taken[1:]) / plain for name, taken in times.items()}
    return ratios | {"step_deepspeed_over_torch": ratios["step_deepspeed"] / ratios["step_torch"]}


def spec_of(model: ModelShape, layout: Layout, accelerator: str, rules: MeasureRules | None = None) -> TrialSpec:
    """A trial of this layout on one node."""
    return TrialSpec(
        search_id="benchmark-aaaaaa",
        trial="t0001",
        attempt="a1",
        nonce="0" * 32,
        kind=TrialKind.SEARCH,
        layout=layout,
        model=model,
        global_batch_size=layout.global_batch_size,
        num_gpus=layout.num_gpus,
        gpus_per_node=layout.num_gpus,
        accelerator=accelerator,
        measure=rules or MeasureRules(),
    )


def _step_contenders(device: str, folder: Path) -> dict[str, Work]:
    """Functions that take one optimizer step of each contender, in this process as the whole world."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    spec = spec_of(MODEL, LAYOUT, "cpu" if device == "cpu" else "h200-141gb")
    from trials.ranks.environment import RankEnvironment, prepare_process

    prepare_process(replace(spec, layout=replace(spec.layout, engine="deepspeed")), os.environ)
    import torch

    from benchmarks.plain_gpt import PlainTrainer
    from trials.train.data import SyntheticData
    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.factory import build_engine
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.model.initial_weights import WeightSource
    from trials.train.parallel.device import open_device, select_attention_kernel
    from trials.train.parallel.process_groups import join_world

    torch.set_num_threads(1)
    where = open_device(spec, 0)
    select_attention_kernel(spec.layout.attention_kernel)
    plain = PlainTrainer(spec.model, where.torch_device)
    data = SyntheticData(spec.model, spec.layout, 0, where.torch_device).batch(0)
    world = join_world(spec, AttemptFolder(folder), RankEnvironment.read(os.environ), where)

    def step_of(engine: str) -> Work:
        weights = WeightSource(spec.seed, where.torch_device)
        layout = replace(spec.layout, engine=engine)
        built = build_engine(TrainingConfig(spec.model, layout, weights, OptimizerConfig()), world)
        return lambda: built.train_step(data)

    return {
        "plain": lambda: plain.train_step(data.ids, data.targets, spec.layout.grad_accum_steps),
        **{engine: step_of(engine) for engine in ENGINES},
    }


def _timed(train_step: Work, device: str) -> float:
    """Seconds for a turn."""
    import torch

    started = time.perf_counter()
    for _ in range(STEPS_A_TURN):
        train_step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
