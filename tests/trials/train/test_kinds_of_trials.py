"""Trials on a token file, with experts, and without late imports: real ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.token_files import document_ids, write_documents, write_tokens
from tests.trials.train.trial_processes import MODEL, RULES, faulty, make_spec
from trials.data.token_file import TokenFile
from trials.measurement.step_log import StepPhase, read_metrics
from trials.ranks.startup import StartupPart
from trials.trial import TrialSpec, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

ONE = Layout(micro_batch_size=2, grad_accum_steps=2)
TP2 = replace(ONE, tensor_parallel=2)
DP2 = replace(ONE, data_parallel=2)
PP2 = replace(ONE, pipeline_parallel=2)
SMALL_DP2 = replace(DP2, micro_batch_size=1)


def spec_on(path, layout: Layout, **fields) -> TrialSpec:
    return make_spec(layout, trainer={"kind": "parlay", "data": {"kind": "tokens", "path": str(path)}}, **fields)


def test_losses_are_the_same_for_every_layout_and_waits_for_data_are_part_of_the_steps(start, tmp_path):
    write_tokens(tmp_path / "tokens.bin", [i * i % 61 for i in range(1001)])
    losses = []
    for number, layout in enumerate((TP2, SMALL_DP2, replace(PP2, engine="deepspeed")), 1):
        trial = start(spec_on(tmp_path / "tokens.bin", layout, trial=f"t000{number}"))
        assert trial.wait() == [0, 0], trial.logs()
        assert trial.result().state is TrialState.MEASURED
        records, metrics = read_metrics(trial.folder.metrics()), trial.outcome().measured
        assert 0 <= metrics.data_wait_s < metrics.step_time_s
        assert all(record.data_wait_s < record.step_time_s for record in records)
        losses.append([record.loss for record in records][:10])
    assert losses[0][-1] < losses[0][0] - 0.01
    assert losses[1:] == [pytest.approx(losses[0], abs=1e-5)] * 2


def test_where_attention_is_by_document_the_documents_of_the_measured_steps_are_counted(start, tmp_path):
    path = tmp_path / "tokens.bin"
    write_documents(path, document_ids([1 + i * 7 % 40 for i in range(60)]))
    file, model = TokenFile(path), replace(MODEL, document_length=10.0)
    trial = start(spec_on(path, SMALL_DP2, model=model))
    assert trial.wait() == [0, 0], trial.logs()
    records = read_metrics(trial.folder.metrics())
    for record in records:
        first = (record.step - 1) * SMALL_DP2.global_batch_size
        sequences = file.document_lengths(range(first, first + SMALL_DP2.global_batch_size), model.seq_length)
        squares = sum(length**2 for sequence in sequences for length in sequence)
        assert record.document_length == pytest.approx(squares / (SMALL_DP2.global_batch_size * model.seq_length))
    found = trial.outcome().measured
    counted = fmean(r.document_length for r in records if r.phase is StepPhase.MEASURED)
    assert found.document_length == pytest.approx(counted)
    flops = replace(model, document_length=counted).model_flops_per_token
    assert found.model_tflops_per_gpu == pytest.approx(flops * found.tokens_per_sec_per_gpu / 1e12)


EXPERTS = replace(
    MODEL,
    num_layers=4,
    position_embedding="rotary",
    norm="rmsnorm",
    gated_mlp=True,
    num_experts=4,
    experts_per_token=2,
    expert_ffn_hidden_size=32,
    num_dense_layers=1,
)
SPLIT = replace(TP2, expert_tensor_parallel=2, activation_checkpointing="full")


def spec_of(layout: Layout, routing: str) -> Any:
    return make_spec(layout, model=EXPERTS, measure=replace(RULES, routing=routing))


@pytest.mark.parametrize(
    ("layout", "routing", "skew"),
    [
        (SPLIT, "balanced", 1.0),
        pytest.param(replace(ONE, pipeline_parallel=2), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        pytest.param(replace(DP2, zero_stage=3), "skewed(1.5)", 1.5, marks=pytest.mark.walks),
        (replace(DP2, zero_stage=3, engine="deepspeed"), "skewed(1.5)", 1.5),
        pytest.param(replace(SPLIT, engine="deepspeed"), "balanced", 1.0, marks=pytest.mark.walks),
        (ONE, "learned", None),
    ],
)
def test_experts_have_the_loads_that_were_asked_for_and_uneven_ones_by_a_router_left_alone(
    start, layout, routing, skew
):
    trial = start(spec_of(layout, routing))
    assert not any(trial.wait()), trial.logs()
    metrics = trial.outcome().metrics
    assert trial.result().state is TrialState.MEASURED
    assert metrics.expert_tokens_mean == trial.spec.global_batch_size * EXPERTS.seq_length * 2 / 4
    assert metrics.expert_tokens_most > 1.1 * metrics.expert_tokens_mean or skew == 1.0
    assert skew is None or metrics.expert_tokens_most == skew * metrics.expert_tokens_mean


RECOMPUTED = replace(PP2, activation_checkpointing="full")
CASES = {
    "torch": (ONE, False),
    "torch-pipeline": (RECOMPUTED, True),
    "torch-zero-3": (replace(DP2, zero_stage=3), True),
    "deepspeed-pipeline": (replace(RECOMPUTED, engine="deepspeed"), True),
    "deepspeed-zero-1": (replace(DP2, engine="deepspeed", zero_stage=1), False),
    "deepspeed-zero-3": (replace(DP2, engine="deepspeed", zero_stage=3, offload="optimizer"), False),
}
"""A layout, and whether torch needs its compiler for it."""


IN_EACH_RUN = ("torch-zero-3", "deepspeed-zero-3")


@pytest.mark.parametrize(
    "name", [name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.walks) for name in CASES]
)
def test_nothing_of_torch_or_deepspeed_is_imported_once_the_ranks_meet(start, name):
    layout, has_compiler = CASES[name]
    trial = start(make_spec(layout), program=faulty("note_late_imports"), warm=None)
    assert set(trial.wait()) == {0}, trial.logs()
    for rank in range(layout.num_gpus):
        found = json.loads((trial.folder.path / f"imports-{rank}.json").read_text())
        assert found == {"late": [], "has_compiler": has_compiler, "has_mlflow": False}
    measured = trial.outcome().measured
    assert list(measured.startup_parts_s) == [part for part in StartupPart if part is not StartupPart.COMPILE]
    assert measured.startup_s == pytest.approx(sum(measured.startup_parts_s.values()))
    assert min(measured.startup_parts_s.values()) > 0
