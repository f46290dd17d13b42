from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.layouts.layout import Layout
from tests.trials.token_files import document_ids, write_documents, write_tokens
from tests.trials.train.trial_processes import MODEL, make_spec
from trials.data.token_file import HEADER_BYTES, TokenFile
from trials.ranks.failures import TrialFailure, reason_of
from trials.train.data import SyntheticData, TokenFileData, sample_indices, training_data
from trials.trial import FailureReason

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


def test_synthetic_sequences_are_ready_before_they_are_taken():
    data = SyntheticData(MODEL, LAYOUTS[1], 1, CPU)
    take = data.begin(3)
    batch = take()
    assert take() is batch
    assert torch.equal(batch.ids, data.batch(3).ids)


@pytest.fixture(scope="module")
def token_path(tmp_path_factory):
    """1001 tokens: 62 sequences of 16 and the token after each."""
    path = tmp_path_factory.mktemp("data") / "tokens.bin"
    write_tokens(path, [i * i % 61 for i in range(1001)])
    return path


def token_data(path, layout: Layout, data_rank: int, seq_length: int = 16) -> TokenFileData:
    model = replace(MODEL, seq_length=seq_length)
    return TokenFileData(TokenFile(path), model, layout, data_rank, CPU)


def test_a_sequence_and_its_targets_lie_one_token_apart_in_the_file(token_path):
    batch = token_data(token_path, Layout(micro_batch_size=2), 0).begin(1)()
    assert batch.ids.dtype == torch.int64
    assert batch.ids.tolist() == [[(s * 16 + i) ** 2 % 61 for i in range(16)] for s in (2, 3)]
    assert batch.targets.tolist() == [[(s * 16 + i) ** 2 % 61 for i in range(1, 17)] for s in (2, 3)]


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(
    micro_batch_size=st.integers(1, 5),
    grad_accum_steps=st.integers(1, 4),
    data_parallel=st.integers(1, 4),
    step=st.integers(0, 10**6),
)
def test_the_ranks_together_take_the_global_batch_whatever_the_layout(
    token_path, micro_batch_size, grad_accum_steps, data_parallel, step
):
    layout = Layout(micro_batch_size=micro_batch_size, grad_accum_steps=grad_accum_steps, data_parallel=data_parallel)
    size = layout.global_batch_size
    whole = token_data(token_path, Layout(micro_batch_size=size), 0).begin(step)()
    for rank in range(data_parallel):
        mine = sample_indices(layout, rank, step) - step * size
        assert torch.equal(token_data(token_path, layout, rank).begin(step)().ids, whole.ids[mine])


def test_the_file_begins_again_after_its_last_whole_sequence_and_steps_may_come_in_any_order(token_path):
    data = token_data(token_path, Layout(micro_batch_size=62), 0)
    first, again = data.begin(0)(), data.begin(1)()
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(first.targets, again.targets)
    data = token_data(token_path, Layout(), 0)
    for step in (5, 0, 0, 7, 8):
        assert data.begin(step)().ids[0, 0] == (step * 16) ** 2 % 61


@pytest.mark.parametrize("vocab_size", [2**16, 2**32])
def test_the_largest_ids_are_no_negative_numbers(tmp_path, vocab_size):
    ids = [vocab_size - 1 - i for i in range(17)]
    write_tokens(tmp_path / "tokens.bin", ids, vocab_size)
    assert token_data(tmp_path / "tokens.bin", Layout(), 0).begin(0)().ids.tolist() == [ids[:-1]]


def test_a_step_is_read_while_the_one_before_it_trains(token_path, monkeypatch):
    """Only taking the batch waits, and only until the reader is done."""
    data, read, go_on = token_data(token_path, Layout(), 0), [], threading.Semaphore(0)
    original = data._read

    def read_when_told(step):
        assert go_on.acquire(timeout=5)
        read.append(step)
        return original(step)

    monkeypatch.setattr(data, "_read", read_when_told)
    take = data.begin(0)
    assert read == []
    go_on.release()
    batch = take()
    assert read == [0]
    assert (batch.documents, batch.squared_lengths, batch.documents_of(1)) == (None, None, None)
    go_on.release()
    data._prefetched[1].result(timeout=5)
    data.begin(1)()
    assert read == [0, 1]
    go_on.release(2)


def test_a_batch_tells_the_documents_of_each_of_its_micro_batches(tmp_path):
    path, lengths = tmp_path / "tokens.bin", (3, 20, 1, 30, 11)
    write_documents(path, document_ids(lengths))
    model = replace(MODEL, seq_length=16, document_length=10.0)
    layout = Layout(micro_batch_size=2, grad_accum_steps=2)
    batch = TokenFileData(TokenFile(path), model, layout, 0, CPU).begin(0)()
    assert batch.documents == ((3, 13), (7, 1, 8), (16,), (6, 10))
    assert batch.squared_lengths == sum(n**2 for lengths in batch.documents for n in lengths)
    first, second = batch.documents_of(2)
    assert (first.lengths, second.lengths) == (batch.documents[:2], batch.documents[2:])
    assert first.positions[1].tolist() == [*range(7), 0, *range(8)]
    assert first.ends.tolist() == [0, 3, 16, 23, 24, 32]
    assert (first.longest, second.longest) == (13, 16)
    assert batch.first(2).documents == batch.documents[:2]


def spec_on(path, **fields):
    return make_spec(LAYOUTS[0], trainer={"kind": "parlay", "data": {"kind": "tokens", "path": str(path)}}, **fields)


def test_a_spec_says_what_is_trained_on(token_path):
    assert isinstance(training_data(spec_on(token_path), 0, CPU), TokenFileData)
    for trainer in ({"kind": "parlay"}, {"kind": "parlay", "data": {"kind": "synthetic"}}):
        assert isinstance(training_data(make_spec(LAYOUTS[0], trainer=trainer), 0, CPU), SyntheticData)


def test_a_file_that_goes_wrong_ends_the_trial_as_a_broken_script_does(tmp_path):
    path = tmp_path / "tokens.bin"
    with pytest.raises(TrialFailure, match="No such file") as caught:
        training_data(spec_on(path), 0, CPU)
    assert reason_of(caught.value, tmp_path) is FailureReason.SCRIPT_ERROR
    write_tokens(path, range(64))
    data = training_data(spec_on(path), 0, CPU)
    os.truncate(path, HEADER_BYTES + 20)
    with pytest.raises(TrialFailure, match="is cut short") as caught:
        data.begin(0)()
    assert reason_of(caught.value, tmp_path) is FailureReason.SCRIPT_ERROR


def test_ids_outside_of_the_files_own_vocabulary_are_never_looked_up(tmp_path):
    path = tmp_path / "tokens.bin"
    write_tokens(path, [1] * 65, vocab_size=64)
    with path.open("r+b") as stream:
        stream.seek(HEADER_BYTES + 20)
        stream.write((64).to_bytes(2, "little"))
    with pytest.raises(TrialFailure, match="token 64 in step 1: the vocabulary of the token file has 64"):
        token_data(path, replace(LAYOUTS[0], data_parallel=1), 0).begin(0)()
