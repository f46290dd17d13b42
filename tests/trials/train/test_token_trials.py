"""Trials on a token file: real ranks, which train on the same tokens whatever their layout."""

from __future__ import annotations

import os
from dataclasses import replace
from statistics import fmean

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.token_files import document_ids, write_documents, write_tokens
from tests.trials.train.trial_processes import ENDLESS, MODEL, make_spec
from trials.data.token_file import HEADER_BYTES, TokenFile
from trials.measurement.step_log import StepPhase, read_metrics
from trials.trial import FailureReason, TrialSpec, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

TP2 = Layout(tensor_parallel=2, micro_batch_size=2, grad_accum_steps=2)
DP2 = Layout(data_parallel=2, micro_batch_size=1, grad_accum_steps=2)
PP2 = replace(TP2, tensor_parallel=1, pipeline_parallel=2, pipeline_schedule="1f1b", engine="deepspeed")


def spec_on(path, layout: Layout, **fields) -> TrialSpec:
    return make_spec(layout, trainer={"kind": "parlay", "data": {"kind": "tokens", "path": str(path)}}, **fields)


def test_losses_are_the_same_for_every_layout_and_waits_for_data_are_part_of_the_steps(start, tmp_path):
    write_tokens(tmp_path / "tokens.bin", [i * i % 61 for i in range(1001)])
    losses = []
    for number, layout in enumerate((TP2, DP2, PP2), 1):
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
    trial = start(spec_on(path, DP2, model=model))
    assert trial.wait() == [0, 0], trial.logs()
    records = read_metrics(trial.folder.metrics())
    for record in records:
        first = (record.step - 1) * DP2.global_batch_size
        sequences = file.document_lengths(range(first, first + DP2.global_batch_size), model.seq_length)
        squares = sum(length**2 for sequence in sequences for length in sequence)
        assert record.document_length == pytest.approx(squares / (DP2.global_batch_size * model.seq_length))
    found = trial.outcome().measured
    counted = fmean(r.document_length for r in records if r.phase is StepPhase.MEASURED)
    assert found.document_length == pytest.approx(counted)
    flops = replace(model, document_length=counted).model_flops_per_token
    assert found.model_tflops_per_gpu == pytest.approx(flops * found.tokens_per_sec_per_gpu / 1e12)


def test_a_file_that_is_cut_while_it_is_read_ends_the_trial_with_its_reason(start, tmp_path):
    write_tokens(tmp_path / "tokens.bin", range(64))
    trial = start(spec_on(tmp_path / "tokens.bin", TP2, measure=ENDLESS))
    trial.wait_for_steps(2)
    os.truncate(tmp_path / "tokens.bin", HEADER_BYTES)
    assert 0 not in trial.wait()
    assert trial.result().reason is FailureReason.SCRIPT_ERROR
    assert "is cut short" in trial.outcome().excerpt
