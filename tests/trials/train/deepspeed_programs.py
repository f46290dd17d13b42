"""Programs of the forked ranks in the DeepSpeed engine's tests. Arguments and answers are JSON.

Run as a program it is the trial program, which at its end lists the modules it has imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ranks.environment import RankEnvironment
from trials.trial import TrialSpec

SEED = 7
EPSILON, LEARNING_RATE, MAX_GRAD_NORM = 1e-4, 1e-3, 0.5
IMPORTED = "imported.json"


def train_plainly(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train the whole model on one rank with torch's AdamW, in fp32. `micro_batches`: of each step and data-parallel
    rank."""
    import torch

    from trials.train.data import SyntheticData
    from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
    from trials.train.model.initial_weights import WeightSource
    from trials.train.parallel.tensor_parallel import TensorParallelRanks

    model, layout = _model(arguments), _layout(arguments)
    cpu = torch.device("cpu")
    chunk = ModelChunk(
        model, ChunkPlan.of(model, 0, 1), TensorParallelRanks(), WeightSource(SEED, cpu), ChunkExecution()
    )
    adamw = {"lr": LEARNING_RATE, "betas": (0.9, 0.95), "eps": EPSILON, "weight_decay": 0.01}
    optimizer = torch.optim.AdamW(chunk.parameters(), foreach=False, **adamw)
    data, size = SyntheticData(model, layout, 0, cpu), layout.micro_batch_size
    losses, norms = [], []
    for step, count in enumerate(arguments["micro_batches"]):
        first, total = step * layout.global_batch_size, count * layout.data_parallel
        batch = data.samples(torch.arange(first, first + total * size))
        optimizer.zero_grad()
        pairs = zip(batch.ids.split(size), batch.targets.split(size), strict=True)
        parts = [chunk.loss(chunk(ids), targets) / total for ids, targets in pairs]
        for part in parts:
            part.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(chunk.parameters(), MAX_GRAD_NORM).item())
        optimizer.step()
        losses.append(sum(part.item() for part in parts))
    return {"losses": losses, "grad_norms": norms}


def train_layout(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same with the DeepSpeed engine. `without` names disabled guards; `allows_fp16`: DeepSpeed assumes that a CPU
    supports fp16; `loss_scale_power`: fp16's first scale; `extensions`: folder of operators that torch compiles."""
    import torch
    import torch.distributed as dist

    from trials.train.data import Batch, SyntheticData
    from trials.train.engines import deepspeed_engine
    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.factory import build_engine
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.model.initial_weights import WeightSource
    from trials.train.parallel.device import Device
    from trials.train.parallel.process_groups import join_world

    _prepare(arguments, deepspeed_engine)
    spec = make_spec(_layout(arguments), model=_model(arguments), seed=SEED)
    cpu = torch.device("cpu")
    world = join_world(spec, AttemptFolder(folder), RankEnvironment.read(os.environ), Device(cpu))
    power = arguments.get("loss_scale_power", 16)
    settings = OptimizerConfig(LEARNING_RATE, epsilon=EPSILON, max_grad_norm=MAX_GRAD_NORM, loss_scale_power=power)
    engine = build_engine(TrainingConfig(spec.model, spec.layout, WeightSource(SEED, cpu), settings), world)
    data = SyntheticData(spec.model, spec.layout, world.coordinates["dp"], cpu)
    losses, norms = [], []
    for step, count in enumerate(arguments["micro_batches"]):
        batch, end = data.batch(step), count * spec.layout.micro_batch_size
        result = engine.train_step(Batch(batch.ids[:end], batch.targets[:end]))
        loss = result.loss.clone()
        dist.all_reduce(loss)  # each data-parallel rank has its own; those of a replica are alike
        losses.append(float(loss) / dist.get_world_size())
        norms.append(float(result.grad_norm))
    held = {
        "whole": sum(parameter.numel() for parameter in engine.chunks[0].parameters()),
        "part": sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in engine.chunks[0].parameters()),
        "bucket": getattr(engine._engine.optimizer, "reduce_bucket_size", None),
    }
    return {"losses": losses, "grad_norms": norms} | held | asdict(engine.counts())


def _prepare(arguments: Mapping[str, Any], deepspeed_engine: Any) -> None:
    if "extensions" in arguments:
        os.environ["TORCH_EXTENSIONS_DIR"] = arguments["extensions"]
    if arguments.get("allows_fp16"):
        from deepspeed.accelerator import get_accelerator

        get_accelerator().is_fp16_supported = lambda: True
    if "without" in arguments:
        _WITHOUT[arguments["without"]](deepspeed_engine)


def _without_sequence_gradients(deepspeed_engine: Any) -> None:
    deepspeed_engine.reduce_in_place = lambda *_: None


def _without_zero_1_for_half_precision(deepspeed_engine: Any) -> None:
    """Replace ZeRO 1 by 0 in bf16, as most bf16 configurations have it."""
    written = deepspeed_engine.ds_config

    def ds_config(layout: Layout, *arguments: Any) -> dict[str, Any]:
        config = written(layout, *arguments)
        config["zero_optimization"]["stage"] = layout.zero_stage
        return {name: value for name, value in config.items() if name != "data_types"}

    deepspeed_engine.ds_config = ds_config


_WITHOUT = {"sequence_gradients": _without_sequence_gradients, "zero_1": _without_zero_1_for_half_precision}


def _layout(arguments: Mapping[str, Any]) -> Layout:
    return Layout.from_json(arguments["layout"])


def _model(arguments: Mapping[str, Any]) -> ModelShape:
    return ModelShape.from_json(arguments["model"])


def main(spec_path: Path) -> None:
    from trials.train.program import run_rank

    folder = AttemptFolder(spec_path.parent)
    spec = TrialSpec.from_json(read_json(spec_path) or {})
    assert run_rank(spec, folder, RankEnvironment.read(os.environ))
    modules = sorted(name for name, module in sys.modules.items() if module is not None)
    write_json(folder.path / IMPORTED, {"modules": modules})
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
