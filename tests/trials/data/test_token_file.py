"""The format of token files: files read back as written, and others are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from tests.trials.token_files import write_tokens
from trials.data.token_file import HEADER_BYTES, TokenFile, TokenHeader, read_token_header

HEADER = TokenHeader(2, 1000, 10, 64, "sha256:" + "ab" * 32, {"tokenizer": "bytes"})


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "tokens.bin"


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_refused(position, change):
    raw = bytearray(HEADER.to_bytes())
    raw[position] ^= change
    with pytest.raises(ValueError, match=r"checksum|not a token file|version"):
        TokenHeader.from_bytes(bytes(raw))


@pytest.mark.parametrize("vocab_size", [2**16, 2**16 + 1])
def test_tokens_that_are_written_are_read_again(path, vocab_size):
    ids = [i * 7919 % vocab_size for i in range(100)] + [vocab_size - 1]
    header = write_tokens(path, ids, vocab_size)
    assert header.token_bytes == (2 if vocab_size <= 2**16 else 4)
    assert header == read_token_header(path)
    assert list(TokenFile(path).samples([0], 100)) == ids


@settings(deadline=None, max_examples=30)
@given(
    num_tokens=st.integers(2, 60), seq_length=st.integers(1, 20), indices=st.lists(st.integers(0, 10**12), max_size=9)
)
def test_sample_k_is_the_kth_sequence_and_the_token_after_it(tmp_path_factory, num_tokens, seq_length, indices):
    """Independent of other indices in the call; after the last sequence comes the first."""
    seq_length = min(seq_length, num_tokens - 1)
    path = tmp_path_factory.mktemp("tokens") / "tokens.bin"
    write_tokens(path, range(num_tokens))
    file = TokenFile(path)
    count = (num_tokens - 1) // seq_length
    assert file.header.num_samples(seq_length) == count >= 1
    ids = file.samples(indices, seq_length).tolist()
    wanted = [list(range(i % count * seq_length, i % count * seq_length + seq_length + 1)) for i in indices]
    assert ids == [token for sample in wanted for token in sample]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a token file"),
        (HEADER.to_bytes()[:100], "ends within its header, after 100 of 4096 bytes"),
        (HEADER.to_bytes(), "is cut short: it has 4096 bytes, 1000 tokens of 2 need more"),
        (HEADER.to_bytes() + bytes(2081), "has 6177 bytes, 1 more than its header says"),
    ],
)
def test_any_other_file_is_refused_with_what_it_is_and_what_to_do(path, content, words):
    path.write_bytes(content)
    for read in (read_token_header, TokenFile):
        with pytest.raises(InputError, match=words) as caught:
            read(path)
        problem = caught.value.problems[0]
        assert (problem.key, problem.value) == ("trainer.data.path", str(path))
        assert "parlay prepare" in problem.fix
