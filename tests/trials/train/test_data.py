from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from search_spaces.layouts.layout import Layout
from tests.trials.datasets import document_ids, write_documents, write_tokens
from tests.trials.train.trial_processes import MODEL
from trials.data.indexed_dataset import IndexedDataset
from trials.ranks.failures import TrialFailure
from trials.train.data import DatasetData, SyntheticData, sample_indices

CPU = torch.device("cpu")
LAYOUTS = [
    Layout(micro_batch_size=m, grad_accum_steps=a, data_parallel=24 // m // a) for m in (1, 2, 4) for a in (1, 3)
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.key)
@pytest.mark.parametrize("step", [0, 7])
def test_a_step_trains_each_sample_of_the_global_batch_once_whatever_the_layout(layout, step):
    indices = [sample_indices(layout, rank, step) for rank in range(layout.data_parallel)]
    assert sorted(torch.cat(indices).tolist()) == list(range(24 * step, 24 * (step + 1)))
    whole = SyntheticData(MODEL, Layout(), 0, CPU).samples(torch.arange(24 * (step + 1)))
    for rank, mine in enumerate(indices):
        assert torch.equal(SyntheticData(MODEL, layout, rank, CPU).batch(step).ids, whole.ids[mine])


def test_synthetic_samples_differ_within_the_vocabulary_and_targets_are_the_ids_that_follow():
    batch = SyntheticData(MODEL, Layout(micro_batch_size=200), 0, CPU).batch(0)
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])
    assert batch.ids.shape == (200, MODEL.seq_length)
    assert len({tuple(row) for row in batch.ids.tolist()}) > 100
    assert 0 <= batch.ids.min() <= batch.ids.max() < MODEL.vocab_size


def test_a_sequence_and_its_targets_lie_one_token_apart_in_the_file_which_begins_again_after_the_last(tmp_path):
    write_tokens(tmp_path / "tokens", [i * i % 61 for i in range(1001)])  # 62 sequences and the token after each
    model, layout = replace(MODEL, seq_length=16), Layout(micro_batch_size=2)
    data = DatasetData(IndexedDataset(tmp_path / "tokens"), model, layout, 0, CPU)
    batch = data.begin(1)()
    assert batch.ids.dtype == torch.int64
    assert batch.ids.tolist() == [[(s * 16 + i) ** 2 % 61 for i in range(16)] for s in (2, 3)]
    assert batch.targets.tolist() == [[(s * 16 + i) ** 2 % 61 for i in range(1, 17)] for s in (2, 3)]
    assert torch.equal(data.begin(31)().ids, data.begin(0)().ids)


def test_a_batch_tells_the_documents_of_each_of_its_micro_batches(tmp_path):
    path, lengths = tmp_path / "tokens", (3, 20, 1, 30, 11)
    write_documents(path, document_ids(lengths))
    model = replace(MODEL, seq_length=16, document_length=10.0)
    layout = Layout(micro_batch_size=2, grad_accum_steps=2)
    batch = DatasetData(IndexedDataset(path), model, layout, 0, CPU).begin(0)()
    assert batch.documents == ((3, 13), (7, 1, 8), (16,), (6, 10))
    assert batch.squared_lengths == sum(n**2 for lengths in batch.documents for n in lengths)
    first, second = batch.documents_of(2)
    assert (first.lengths, second.lengths) == (batch.documents[:2], batch.documents[2:])
    assert first.positions[1].tolist() == [*range(7), 0, *range(8)]
    assert first.ends.tolist() == [0, 3, 16, 23, 24, 32]
    assert (first.longest, second.longest) == (13, 16)
    assert batch.first(2).documents == batch.documents[:2]


def test_a_token_that_the_model_cannot_look_up_ends_the_trial(tmp_path):
    dataset = write_tokens(tmp_path / "tokens", [5, MODEL.vocab_size] * 60)
    with pytest.raises(TrialFailure, match=f"token {MODEL.vocab_size} in step 1: model.vocab_size is"):
        DatasetData(dataset, replace(MODEL, seq_length=16), Layout(), 0, CPU).begin(0)()
