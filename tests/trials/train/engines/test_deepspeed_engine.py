"""Particulars of the DeepSpeed engine: its counts, the length of its steps, and that it compiles nothing."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.train.deepspeed_programs import IMPORTED
from tests.trials.train.ranks import RanksFailed
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import read_json

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PROGRAMS = "tests.trials.train.deepspeed_programs"
TOLERANCE, BF16_TOLERANCE = 1e-5, 1e-2
MODEL = ModelShape(4, 64, 4, 4, 256, False, 32, 32, False, "learned", "layernorm")
TIED = replace(MODEL, tied_embeddings=True)
WIDE = replace(MODEL, num_layers=2, hidden_size=256, ffn_hidden_size=1024)
"""Matrices larger than the 100,000 elements up to which DeepSpeed's ZeRO 3 keeps weights whole."""
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
WHOLE_STEPS = (4, 4, 4)


def layout(**fields: Any) -> Layout:
    return Layout(engine="deepspeed", micro_batch_size=2, grad_accum_steps=4, **fields).canonical()


def name_of(value: Any) -> str:
    """Test id from the fields that differ from the default."""
    if isinstance(value, ModelShape):
        return "wide" if value == WIDE else "tied" if value == TIED else "untied"
    if not isinstance(value, Layout):
        return str(value)
    usual = layout().to_json()
    return "-".join(f"{name}_{v}" for name, v in value.to_json().items() if v != usual[name]) or "one_rank"


@pytest.fixture
def train(ranks):
    """Each rank's answer to some steps of a layout."""

    def train_layout(given: Layout, model: ModelShape = MODEL, micro_batches=WHOLE_STEPS, **options: Any):
        shapes = {"model": model.to_json(), "layout": given.to_json(), "micro_batches": micro_batches}
        return ranks.run(f"{PROGRAMS}:train_layout", given.num_gpus, shapes | options)

    return train_layout


@pytest.fixture
def difference(ranks):
    """Largest difference of any loss or norm from a plain training on the same batches."""

    def to_plain(trained, given: Layout, model: ModelShape = MODEL, micro_batches=WHOLE_STEPS) -> float:
        shapes = {"model": model.to_json(), "layout": given.to_json(), "micro_batches": micro_batches}
        [plain] = ranks.run(f"{PROGRAMS}:train_plainly", 1, shapes)
        return max(
            abs(ours - theirs)
            for rank in trained
            for name in ("losses", "grad_norms")
            for ours, theirs in zip(rank[name], plain[name], strict=True)
        )

    return to_plain


@pytest.mark.parametrize(
    ("given", "model"),
    [
        (layout(), MODEL),
        (layout(zero_stage=1, **DP2), MODEL),
        (layout(zero_stage=2, offload="optimizer", **DP2), MODEL),
        (layout(zero_stage=3, overlap_comm=True, bucket_mib=1, **DP2), WIDE),
        (layout(**PP2), TIED),
        (layout(zero_stage=1, **PP2, **DP2), TIED),
    ],
    ids=name_of,
)
def test_a_step_has_as_many_micro_batches_as_its_batch(train, difference, given, model):
    micro_batches = (4, 2, 3, 4)
    trained = train(given, model, micro_batches)
    assert difference(trained, given, model, micro_batches) <= TOLERANCE
    assert {rank["micro_batches"] for rank in trained} == {13}
    assert {rank["samples"] for rank in trained} == {26}


@pytest.mark.parametrize(
    ("given", "model"),
    [
        (layout(**DP2), MODEL),
        *((layout(zero_stage=stage, **TP2, **DP2), TIED) for stage in (1, 2, 3)),
        *((layout(zero_stage=stage, offload="optimizer", **DP2), MODEL) for stage in (1, 3)),
        *((layout(zero_stage=stage, precision="bf16", **DP2), MODEL) for stage in (1, 2, 3)),
        (layout(zero_stage=1, **PP2, **DP2), TIED),
        (layout(zero_stage=1, precision="bf16", offload="optimizer", **PP2, **DP2), TIED),
        (layout(precision="bf16", **PP2), TIED),
    ],
    ids=name_of,
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


def test_zero_3_leaves_whole_between_steps_only_what_is_small(train, difference):
    given = layout(zero_stage=3, **DP2)
    trained = train(given, WIDE)
    assert difference(trained, given, WIDE) <= TOLERANCE
    matrices = WIDE.num_layers * 12 * WIDE.hidden_size**2
    large = matrices - WIDE.num_layers * WIDE.hidden_size**2  # the attention's output is small enough
    assert {rank["whole"] for rank in trained} == {WIDE.parameters - large}


SPLIT = {"sequence_parallel": True, **TP2, **DP2}


@pytest.mark.parametrize(
    ("given", "without"),
    [
        (layout(zero_stage=1, **SPLIT), "sequence_gradients"),
        pytest.param(layout(zero_stage=2, **SPLIT), "sequence_gradients", marks=pytest.mark.walks),
        pytest.param(layout(zero_stage=1, overlap_comm=True, **SPLIT), "sequence_gradients", marks=pytest.mark.walks),
        (layout(sequence_parallel=True, **TP2, **PP2), "sequence_gradients"),
        (layout(precision="bf16"), "zero_1"),
    ],
    ids=name_of,
)
def test_without_a_guard_the_training_is_another(train, difference, given, without):
    tolerance = TOLERANCE if given.precision == "fp32" else BF16_TOLERANCE
    assert difference(train(given), given) <= tolerance
    assert difference(train(given, without=without), given) > tolerance


@pytest.mark.parametrize(
    "given",
    [layout(zero_stage=1, offload="optimizer", **DP2), layout(zero_stage=1, **PP2, **DP2), layout(zero_stage=3, **DP2)],
    ids=name_of,
)
def test_nothing_is_compiled_and_the_lock_of_a_killed_build_stops_nobody(train, tmp_path: Path, given):
    for operator in ("deepspeed_shm_comm", "cpu_adam", "fused_adam"):
        (tmp_path / operator).mkdir()
        (tmp_path / operator / "lock").touch()
    before = sorted(tmp_path.rglob("*"))
    train(given, micro_batches=(4,), extensions=str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


FP16 = layout(zero_stage=1, precision="fp16", **PP2, **DP2)


def test_what_fp16_reports_is_unscaled(train, difference):
    assert difference(train(FP16, TIED, allows_fp16=True), FP16, TIED) <= BF16_TOLERANCE


def test_a_step_that_overflows_in_fp16_has_an_infinite_norm_and_updates_nothing(train):
    scaled, overflowing = 12, 40
    trained = (train(FP16, TIED, allows_fp16=True, loss_scale_power=power) for power in (scaled, overflowing))
    (usual, *_), (first, *others) = trained
    assert all(math.isinf(norm) for rank in (first, *others) for norm in rank["grad_norms"])
    assert first["losses"][0] == usual["losses"][0]
    assert all(math.isfinite(norm) for norm in usual["grad_norms"])


def test_deepspeed_itself_refuses_fp16_on_a_cpu_without_fp16_instructions(train):
    refused = pytest.raises(RanksFailed, match="fp16 is not supported")
    with nullcontext() if torch.ops.mkldnn._is_mkldnn_fp16_supported() else refused:
        train(FP16, TIED)


@pytest.mark.parametrize("zero_stage", [1, 3])
def test_a_trial_imports_neither_the_compiler_nor_mlflow(start, zero_stage):
    given = Layout(engine="deepspeed", zero_stage=zero_stage, offload="optimizer")
    trial = start(make_spec(given), program=(PROGRAMS,), warm=None)
    assert trial.wait() == [0], trial.logs()
    imported = (read_json(trial.folder.path / IMPORTED) or {})["modules"]
    assert "deepspeed" in imported
    assert not {"torch._dynamo", "torch._inductor", "triton", "mlflow"} & set(imported)
