"""Benchmark of the trial program against plain PyTorch: ratios from one run, with alternating contenders.

    python -m benchmarks.trainer [--rounds 7] [--device cpu|cuda] [--json]

`step_*`: one rank's optimizer step over a plain PyTorch GPT's of the same shape. `startup_*`: a whole short trial, from
starting its ranks to the end of the last, over a bare torch script of the same ranks and steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.files.folders import AttemptFolder, SearchFolder, write_json
from trials.measure_rules import MeasureRules
from trials.trial import TrialKind, TrialSpec

STEPS_MODEL = ModelShape(6, 512, 8, 8, 2048, False, 8192, 256, False, "learned", "layernorm")
STEPS_LAYOUT = Layout(micro_batch_size=2, grad_accum_steps=2)
STEPS_A_TURN = 2

STARTUP_MODEL = ModelShape(2, 64, 2, 2, 256, False, 256, 32, False, "learned", "layernorm")
STARTUP_LAYOUT = Layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=2)
STARTUP_RULES = MeasureRules(min_steps=6, max_steps=6, max_warmup_steps=6, ci_relative_width=1e-9)
STARTUP_STEPS = 12


def main() -> None:
    arguments = _arguments()
    found = step_ratios(arguments.device, arguments.rounds) | startup_ratios(arguments.device, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, ratio in found.items():
            print(f"{name:28} {ratio:6.3f}")


def step_ratios(device: str, rounds: int) -> dict[str, float]:
    """Median step time of each engine over the plain GPT's; the first round warms up and is not counted."""
    with tempfile.TemporaryDirectory(prefix="parlay-benchmark-") as folder:
        contenders = _step_contenders(device, Path(folder))
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(rounds + 1):
            for name, train_step in contenders.items():
                times[name].append(_timed(train_step, device))
    plain, *engines = [median(taken[1:]) for taken in times.values()]
    names = [name for name in contenders if name != "plain"]
    ratios = {f"step_{name}": engine / plain for name, engine in zip(names, engines, strict=True)}
    return ratios | {"step_deepspeed_over_torch": ratios["step_deepspeed"] / ratios["step_torch"]}


def startup_ratios(device: str, rounds: int) -> dict[str, float]:
    """Median seconds of a short trial over the bare script's."""
    contenders = {"bare": _bare_ranks, "torch": _trial_ranks("torch"), "deepspeed": _trial_ranks("deepspeed")}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, start in contenders.items():
            with tempfile.TemporaryDirectory(prefix="parlay-benchmark-") as folder:
                seconds[name].append(_run_ranks(start(Path(folder), device)))
    bare = median(seconds.pop("bare"))
    return {f"startup_{name}": median(taken) / bare for name, taken in seconds.items()}


def _step_contenders(device: str, folder: Path) -> dict[str, Callable[[], object]]:
    """Functions that take one optimizer step of each contender, in this process as the whole world."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    spec = _spec(STEPS_MODEL, STEPS_LAYOUT, device)
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

    def engine(name: str) -> Callable[[], object]:
        weights = WeightSource(spec.seed, where.torch_device)
        layout = replace(spec.layout, engine=name)
        built = build_engine(TrainingConfig(spec.model, layout, weights, OptimizerConfig()), world)
        return lambda: built.train_step(data)

    return {
        "plain": lambda: plain.train_step(data.ids, data.targets, spec.layout.grad_accum_steps),
        "torch": engine("torch"),
        "deepspeed": engine("deepspeed"),
    }


def _timed(train_step: Callable[[], object], device: str) -> float:
    """Seconds for a turn."""
    import torch

    started = time.perf_counter()
    for _ in range(STEPS_A_TURN):
        train_step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _bare_ranks(folder: Path, device: str) -> list[Sequence[str]]:
    job = {
        "model": STARTUP_MODEL.to_json(),
        "micro_batch_size": STARTUP_LAYOUT.micro_batch_size,
        "grad_accum_steps": STARTUP_LAYOUT.grad_accum_steps,
        "steps": STARTUP_STEPS,
        "store": str(folder / "store"),
        "device": device,
    }
    return [("benchmarks.plain_gpt", json.dumps(job))] * _num_ranks(device)


def _trial_ranks(engine: str) -> Callable[[Path, str], list[Sequence[str]]]:
    def ranks(folder: Path, device: str) -> list[Sequence[str]]:
        layout = replace(STARTUP_LAYOUT, engine=engine, data_parallel=_num_ranks(device))
        spec = _spec(STARTUP_MODEL, layout, device, STARTUP_RULES)
        attempt = SearchFolder(folder).attempt(spec.trial, spec.attempt)
        attempt.path.mkdir(parents=True)
        write_json(attempt.spec, spec.to_json())
        return [("trials.train", str(attempt.spec))] * _num_ranks(device)

    return ranks


def _num_ranks(device: str) -> int:
    """Several ranks cannot share a GPU under NCCL."""
    return STARTUP_LAYOUT.data_parallel if device == "cpu" else 1


def _run_ranks(ranks: Sequence[Sequence[str]]) -> float:
    """Seconds until the last rank has ended; RuntimeError when one failed."""
    started = time.perf_counter()
    processes = [
        subprocess.Popen((sys.executable, "-m", *words), env=_environment(rank, len(ranks)))
        for rank, words in enumerate(ranks)
    ]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"{ranks[0][0]} ended with {codes}")
    return time.perf_counter() - started


def _environment(rank: int, ranks: int) -> Mapping[str, str]:
    place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
    return os.environ | place | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def _spec(model: ModelShape, layout: Layout, device: str, rules: MeasureRules | None = None) -> TrialSpec:
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
        accelerator="cpu" if device == "cpu" else "h200-141gb",
        measure=rules or MeasureRules(),
    )


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
