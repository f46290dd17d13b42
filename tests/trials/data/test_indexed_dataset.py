"""Megatron's indexed datasets: read as megatron-core's builder wrote them, and others refused."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from tests.trials.datasets import document_ids, write_documents, write_tokens
from trials.data.indexed_dataset import IndexedDataset


@pytest.mark.processes  # imports torch
@pytest.mark.parametrize("vocab_size", [50_000, 128_256])
def test_a_dataset_of_megatron_cores_builder_is_read_as_it_was_written(tmp_path, vocab_size):
    """16 and 32 bits, a document of two sequences, and one that is empty."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
    from torch import IntTensor

    builder = IndexedDatasetBuilder(str(tmp_path / "text_document.bin"), dtype=DType.optimal_dtype(vocab_size))
    documents = [[[vocab_size - 1, 7, 0], [5, 6]], [], [[1, 2, 3, 4]]]
    for sequences in documents:
        for sequence in sequences:
            builder.add_item(IntTensor(sequence))
        builder.end_document()
    builder.finalize(str(tmp_path / "text_document.idx"))
    dataset = IndexedDataset(tmp_path / "text_document")
    assert (dataset.num_tokens, dataset.num_documents) == (9, 3)
    assert dataset.samples([0, 1], 4).tolist() == [vocab_size - 1, 7, 0, 5, 6, 6, 1, 2, 3, 4]
    assert dataset.document_lengths([0, 1], 4) == [(4,), (1, 3)]


@settings(deadline=None, max_examples=30)
@given(
    num_tokens=st.integers(2, 60), seq_length=st.integers(1, 20), indices=st.lists(st.integers(0, 10**12), max_size=9)
)
def test_sample_k_is_the_kth_sequence_and_the_token_after_it(tmp_path_factory, num_tokens, seq_length, indices):
    """Independent of other indices in the call; after the last sequence comes the first."""
    seq_length = min(seq_length, num_tokens - 1)
    dataset = write_tokens(tmp_path_factory.mktemp("tokens") / "tokens", range(num_tokens))
    count = (num_tokens - 1) // seq_length
    assert dataset.num_samples(seq_length) == count >= 1
    wanted = [list(range(i % count * seq_length, i % count * seq_length + seq_length + 1)) for i in indices]
    assert dataset.samples(indices, seq_length).tolist() == [token for sample in wanted for token in sample]


@settings(deadline=None, max_examples=30)
@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=200), seq_length=st.integers(1, 20))
def test_documents_are_cut_where_a_sequence_begins_and_ends(tmp_path_factory, lengths, seq_length):
    dataset = write_documents(tmp_path_factory.mktemp("tokens") / "tokens", document_ids(lengths))
    count = dataset.num_samples(seq_length)
    cuts = sorted({0, *accumulate(lengths), *range(0, sum(lengths) + 1, seq_length)})
    parts = [(start, end - start) for start, end in pairwise(cuts)]
    wanted = [tuple(n for start, n in parts if start // seq_length == k) for k in range(count)]
    assert dataset.document_lengths(range(count), seq_length) == wanted


GOOD = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, 2, 3) + struct.pack("<2i2q3q", 30, 70, 0, 60, 0, 1, 2)


def changed(start: int, *numbers: int, code: str = "q") -> bytes:
    """The index of two documents of 30 and 70 tokens with these numbers in place of its own."""
    raw = struct.pack(f"<{len(numbers)}{code}", *numbers)
    return GOOD[:start] + raw + GOOD[start + len(raw) :]


@pytest.mark.parametrize(
    ("index", "tokens", "words"),
    [
        (b"", 200, "idx is not the index of a dataset"),
        (b"\x93NUMPY" + GOOD[6:], 200, "idx is not the index of a dataset"),
        (changed(9, 2), 200, "idx is not the index of a dataset"),
        (changed(17, 7, code="B"), 200, "idx has tokens of type 7, neither uint16"),
        (GOOD[:-1], 200, "has 81 bytes; 2 sequences in 2 documents take 82"),
        (GOOD + bytes(2), 200, "has 84 bytes; 2 sequences in 2 documents take 82"),
        (changed(18, 2**62), 200, "has 82 bytes; 46"),
        (GOOD, 198, "bin has 198 bytes; by its index it has 200"),
        (changed(38, -70, code="i"), 200, "bin has 200 bytes; by its index it has -80"),
        (changed(74, 1), 200, "idx is damaged: its documents are not in order"),
    ],
)
def test_any_other_files_are_refused_with_what_they_are_and_what_to_do(tmp_path, index, tokens, words):
    prefix = tmp_path / "text"
    Path(f"{prefix}.idx").write_bytes(index)
    Path(f"{prefix}.bin").write_bytes(bytes(tokens))
    with pytest.raises(InputError, match=words) as caught:
        IndexedDataset(prefix)
    problem = caught.value.problems[0]
    assert problem.key == "trainer.data.path"
    assert problem.fix


@pytest.mark.parametrize("index", [changed(50, 220), changed(50, -2), changed(66, 3), changed(66, -1)])
def test_documents_out_of_order_are_refused_when_they_are_read(tmp_path, index):
    dataset = write_documents(tmp_path / "text", document_ids([30, 70]))
    (tmp_path / "text.idx").write_bytes(index)
    with pytest.raises(InputError, match="not in order"):
        dataset.document_lengths([0], 50)


def test_a_file_that_became_shorter_is_refused_when_it_is_read(tmp_path):
    dataset = write_documents(tmp_path / "text", document_ids([30, 70]))
    (tmp_path / "text.bin").write_bytes(bytes(90))
    with pytest.raises(InputError, match="bin is cut short, at byte 90"):
        dataset.samples([1], 50)


def test_a_file_of_the_dataset_is_not_its_prefix(tmp_path):
    write_tokens(tmp_path / "text", range(9))
    with pytest.raises(InputError, match="not their prefix") as caught:
        IndexedDataset(tmp_path / "text.bin")
    assert str(tmp_path / "text") in caught.value.problems[0].fix
