"""Particulars of the DeepSpeed engine: counts, lengths of steps, guards, and that it compiles nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.kit import model
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder
from trials.ranks.environment import RankEnvironment

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

TOLERANCE, BF16_TOLERANCE = 1e-5, 1e-2
MODEL = model(vocab_size=32, tied_embeddings=False)
TIED = model(vocab_size=32)
WIDE = model(vocab_size=32, tied_embeddings=False, num_layers=2, hidden_size=256, ffn_hidden_size=1024)
"""Matrices larger than the 100,000 elements up to which DeepSpeed's ZeRO 3 keeps weights whole."""
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
WHOLE_STEPS = (4, 4, 4)
SEED = 7
ADAMW = {"learning_rate": 1e-3, "epsilon": 1e-4, "max_grad_norm": 0.5}
CPU = torch.device("cpu")


def train_layout(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Train a layout on a forked rank. `micro_batches`: of each step and data-parallel rank; `without` names a disabled
    guard; `allows_fp16`: DeepSpeed assumes that a CPU supports fp16; `loss_scale_power`: fp16's first scale;
    `extensions`: folder of operators that torch compiles."""
    from deepspeed.accelerator import get_accelerator

    from trials.train.data import Batch, SyntheticData
    from trials.train.engines import deepspeed_engine
    from trials.train.engines.engine import TrainingConfig
    from trials.train.engines.factory import build_engine
    from trials.train.engines.optimizer import OptimizerConfig
    from trials.train.model.initial_weights import WeightSource
    from trials.train.parallel.device import Device
    from trials.train.parallel.process_groups import join_world

    os.environ["TORCH_EXTENSIONS_DIR"] = arguments.get("extensions", str(folder))
    if arguments.get("allows_fp16"):
        get_accelerator().is_fp16_supported = lambda: True
    if "without" in arguments:
        WITHOUT[arguments["without"]](deepspeed_engine)
    model, layout = ModelShape.from_json(arguments["model"]), Layout.from_json(arguments["layout"])
    spec = make_spec(layout, model=model, seed=SEED)
    world = join_world(spec, AttemptFolder(folder), RankEnvironment.read(os.environ), Device(CPU))
    settings = OptimizerConfig(**ADAMW, loss_scale_power=arguments.get("loss_scale_power", 16))
    engine = build_engine(TrainingConfig(model, layout, WeightSource(SEED, CPU), settings), world)
    data = SyntheticData(model, layout, world.coordinates["dp"], CPU)
    losses, norms = [], []
    for step, count in enumerate(arguments["micro_batches"]):
        batch, end = data.batch(step), count * layout.micro_batch_size
        result = engine.train_step(Batch(batch.ids[:end], batch.targets[:end]))
        loss = result.loss.clone()
        dist.all_reduce(loss)  # each data-parallel rank has its own; those of a replica are alike
        losses.append(float(loss) / dist.get_world_size())
        norms.append(float(result.grad_norm))
    parameters = [*engine.chunks[0].parameters()]
    optimizer = getattr(getattr(engine, "_engine", None), "optimizer", None)
    held = {
        "whole": sum(parameter.numel() for parameter in parameters),
        "part": sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in parameters),
        "bucket": getattr(optimizer, "reduce_bucket_size", None),
    }
    return {"losses": losses, "grad_norms": norms} | held | asdict(engine.counts())


def without_sequence_gradients(deepspeed_engine: Any) -> None:
    deepspeed_engine.sum_partial = lambda *_: None
    deepspeed_engine.reduce_in_place = lambda *_: None  # where parts overlap


def without_zero_1_for_half_precision(deepspeed_engine: Any) -> None:
    """Replace ZeRO 1 by 0 in bf16, as most bf16 configurations have it."""
    written = deepspeed_engine.ds_config

    def ds_config(layout: Layout, *arguments: Any) -> dict[str, Any]:
        config = written(layout, *arguments)
        config["zero_optimization"]["stage"] = layout.zero_stage
        return {name: value for name, value in config.items() if name != "data_types"}

    deepspeed_engine.ds_config = ds_config


WITHOUT = {"sequence_gradients": without_sequence_gradients, "zero_1": without_zero_1_for_half_precision}


def layout(**fields: Any) -> Layout:
    return Layout(engine="deepspeed", micro_batch_size=2, grad_accum_steps=4, **fields).canonical()


@pytest.fixture
def train(ranks):
    """Each rank's answer to some steps of a layout."""

    def train_layout(given: Layout, model: ModelShape = MODEL, micro_batches=WHOLE_STEPS, **options: Any):
        shapes = {"model": model.to_json(), "layout": given.to_json(), "micro_batches": micro_batches}
        return ranks.run(f"{__name__}:train_layout", given.num_gpus, shapes | options)

    return train_layout


@pytest.fixture
def difference(train):
    """Largest difference of any loss or norm from one rank by torch on the same batches, in fp32."""

    def to_one_rank(trained, given: Layout, model: ModelShape = MODEL, micro_batches=WHOLE_STEPS) -> float:
        replicas = given.data_parallel
        alone = Layout(micro_batch_size=2, grad_accum_steps=4 * replicas)
        [plain] = train(alone, model, [count * replicas for count in micro_batches])
        return max(
            abs(ours - theirs)
            for rank in trained
            for name in ("losses", "grad_norms")
            for ours, theirs in zip(rank[name], plain[name], strict=True)
        )

    return to_one_rank


@pytest.mark.parametrize(
    ("given", "model"),
    [
        pytest.param(layout(), MODEL, marks=pytest.mark.walks),
        pytest.param(layout(zero_stage=3, overlap_comm=True, bucket_mib=1, **DP2), WIDE, marks=pytest.mark.walks),
        (layout(zero_stage=1, **PP2, **DP2), TIED),
    ],
    ids=["one-rank", "zero-3", "pipeline-zero-1"],
)
def test_a_step_has_as_many_micro_batches_as_its_batch(train, difference, given, model):
    micro_batches = (4, 2, 3, 4)
    trained = train(given, model, micro_batches)
    assert difference(trained, given, model, micro_batches) <= TOLERANCE
    assert {rank["micro_batches"] for rank in trained} == {13}
    assert {rank["samples"] for rank in trained} == {26}


BF16 = {"precision": "bf16"}
OFFLOAD = {"offload": "optimizer"}


@pytest.mark.parametrize(
    ("given", "model"),
    [
        (layout(zero_stage=2, **TP2, **DP2), TIED),
        *(
            pytest.param(given, model, marks=pytest.mark.walks)
            for given, model in (
                (layout(**DP2), MODEL),
                *((layout(zero_stage=stage, **TP2, **DP2), TIED) for stage in (1, 3)),
                *((layout(zero_stage=stage, **OFFLOAD, **DP2), MODEL) for stage in (1, 3)),
                *((layout(zero_stage=stage, **BF16, **DP2), MODEL) for stage in (1, 2, 3)),
                (layout(zero_stage=1, **BF16, **OFFLOAD, **PP2, **DP2), TIED),
                (layout(**BF16, **PP2), TIED),
            )
        ),
    ],
)
def test_ranks_count_what_they_hold_and_what_they_update(train, given, model):
    trained = train(given, model, (4,))
    replicas = {"parameters": given.zero_stage < 3, "optimizer_parameters": given.zero_stage < 1}
    for name, each_data_rank_has_all in replicas.items():
        held = [rank[name] for rank in trained]
        assert sum(held) == model.parameters * (given.data_parallel if each_data_rank_has_all else 1)
        assert max(held) < 0.6 * model.parameters or given.num_gpus == given.data_parallel * each_data_rank_has_all
    if given.zero_stage > 0 and trained[0]["bucket"] is not None:  # its bf16 optimizer has none
        parts = [rank["part"] for rank in trained]
        assert {rank["bucket"] for rank in trained} == {max(parts)}, "reserved is what the largest part needs"


@pytest.mark.walks
def test_zero_3_leaves_whole_between_steps_only_what_is_small(train):
    trained = train(layout(zero_stage=3, **DP2), WIDE)
    large = WIDE.num_layers * 11 * WIDE.hidden_size**2  # but for the attention's output, which is small enough
    assert {rank["whole"] for rank in trained} == {WIDE.parameters - large}


SPLIT = {"sequence_parallel": True, **TP2, **DP2}


@pytest.mark.walks
@pytest.mark.parametrize(
    ("given", "without"),
    [
        (layout(zero_stage=1, **SPLIT), "sequence_gradients"),
        pytest.param(layout(zero_stage=1, overlap_comm=True, **SPLIT), "sequence_gradients", marks=pytest.mark.walks),
        (layout(precision="bf16"), "zero_1"),
    ],
    ids=["zero-1", "overlap", "bf16"],
)
def test_without_a_guard_the_training_is_another(train, difference, given, without):
    tolerance = TOLERANCE if given.precision == "fp32" else BF16_TOLERANCE
    assert difference(train(given), given) <= tolerance
    assert difference(train(given, without=without), given) > tolerance


@pytest.mark.parametrize("given", [layout(zero_stage=1, **OFFLOAD, **DP2), layout(zero_stage=3, **DP2)], ids=["1", "3"])
def test_nothing_is_compiled_and_the_lock_of_a_killed_build_stops_nobody(train, tmp_path: Path, given):
    for operator in ("deepspeed_shm_comm", "cpu_adam", "fused_adam"):
        (tmp_path / operator).mkdir()
        (tmp_path / operator / "lock").touch()
    before = sorted(tmp_path.rglob("*"))
    train(given, micro_batches=(4,), extensions=str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


FP16 = layout(zero_stage=1, precision="fp16", **PP2, **DP2)


def test_what_fp16_reports_is_unscaled_and_a_step_that_overflows_updates_nothing(train, difference):
    usual, overflowing = (train(FP16, TIED, allows_fp16=True, loss_scale_power=power) for power in (12, 40))
    assert difference(usual, FP16, TIED) <= BF16_TOLERANCE
    assert all(math.isinf(norm) for rank in overflowing for norm in rank["grad_norms"])
    assert overflowing[0]["losses"][0] == usual[0]["losses"][0]
