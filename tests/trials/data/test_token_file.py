"""The format of token files: files read back as written, and others are rejected."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from tests.kit import model
from tests.trials.token_files import document_ids, write_documents, write_tokens
from trials.data.token_file import HEADER_BYTES, MAGIC, TokenFile, TokenHeader, read_token_header, require_tokens

MODEL = model(vocab_size=64, seq_length=16)
HEADER = TokenHeader(2, 1000, 10, 64, "sha256:" + "ab" * 32, {"tokenizer": "bytes"})


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "tokens.bin"


@pytest.mark.slow
@given(
    st.builds(
        TokenHeader,
        token_bytes=st.sampled_from([2, 4]),
        num_tokens=st.integers(1, 2**64 - 1),
        num_documents=st.just(1),
        vocab_size=st.integers(1, 2**16),
        checksum=st.binary(min_size=32, max_size=32).map(lambda digest: f"sha256:{digest.hex()}"),
        made=st.dictionaries(st.text(max_size=20), st.text(max_size=20) | st.integers() | st.none(), max_size=8),
    )
)
def test_a_header_that_is_written_is_read_again(header):
    raw = header.to_bytes()
    assert len(raw) == HEADER_BYTES
    assert TokenHeader.from_bytes(raw) == header


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_refused(position, change):
    raw = bytearray(HEADER.to_bytes())
    raw[position] ^= change
    with pytest.raises(ValueError, match=r"checksum|not a token file|version"):
        TokenHeader.from_bytes(bytes(raw))


@given(st.binary(max_size=5000))
def test_bytes_from_anywhere_are_refused_in_words(raw):
    with pytest.raises(ValueError, match=r"is not a token file|ends within its header"):
        TokenHeader.from_bytes(raw)
    with pytest.raises(ValueError, match=r"ends within its header|checksum|version"):
        TokenHeader.from_bytes(MAGIC + raw)


def test_the_numbers_are_little_endian_and_their_places_fixed():
    raw = HEADER.to_bytes()
    assert raw[:8] == b"\x89parlay\n"
    assert struct.unpack_from("<IIQQQ", raw, 8) == (2, 2, 1000, 10, 64)
    assert raw[40:72] == b"\xab" * 32
    assert struct.unpack_from("<I", raw, HEADER_BYTES - 4) == (zlib.crc32(raw[:-4]),)


@pytest.mark.parametrize(
    ("place", "number", "words"),
    [
        ("<8xI", 1, "version 1; this Parlay reads version 2"),
        ("<8xI", 2 << 24, "version 33554432"),  # the other byte order
        ("<12xI", 3, "3 bytes a token"),
        ("<24xQ", 0, "0 documents of 1000 tokens"),
        ("<24xQ", 1001, "1001 documents of 1000 tokens"),
        ("<32xQ", 0, "vocabulary of 0"),
        ("<32xQ", 2**17, "2 b"),
    ],
)
def test_numbers_that_no_file_has_are_refused(place, number, words):
    raw = bytearray(HEADER.to_bytes())
    struct.pack_into(place[0] + place[-1], raw, struct.calcsize(place[:-1]), number)
    with pytest.raises(ValueError, match=words):
        TokenHeader.from_bytes(sealed(raw))


@pytest.mark.parametrize("made", [b"[1]", b"{", b"\xff", b"[" * 3000])
def test_a_header_that_does_not_tell_how_it_was_made_is_refused(made):
    raw = bytearray(HEADER.to_bytes())
    struct.pack_into("<I", raw, 72, len(made))
    raw[76 : 76 + len(made)] = made
    with pytest.raises(ValueError, match="how the file was made"):
        TokenHeader.from_bytes(sealed(raw))
    with pytest.raises(ValueError, match="at most 4000 are allowed"):
        replace(HEADER, made={"separator": "x" * 4000}).to_bytes()


@pytest.mark.parametrize("vocab_size", [64, 2**16, 2**16 + 1, 2**20])
def test_tokens_that_are_written_are_read_again(path, vocab_size):
    ids = [i * 7919 % vocab_size for i in range(100)] + [vocab_size - 1]
    header = write_tokens(path, ids, vocab_size)
    assert header.token_bytes == (2 if vocab_size <= 2**16 else 4)
    assert header == read_token_header(path)
    assert list(TokenFile(path).samples([0], 100)) == ids
    end = HEADER_BYTES + 101 * header.token_bytes
    assert path.stat().st_size == end + -end % 8 + 8


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
        (None, "No such file"),
        (b"", "is not a token file"),
        (b'{"text": "x"}\n', "seems to be JSON"),
        (b"\x93NUMPY\x01\x00", "a NumPy array"),
        (b"MMIDIDX\x00\x00\x01", "the index of a Megatron-LM dataset"),
        (HEADER.to_bytes()[:100], "ends within its header, after 100 of 4096 bytes"),
        (HEADER.to_bytes(), "is cut short: it has 4096 bytes, 1000 tokens of 2 need more"),
        (HEADER.to_bytes() + bytes(2081), "has 6177 bytes, 1 more than its header says"),
        (replace(HEADER, num_tokens=2**64 - 1).to_bytes() + bytes(64), "is cut short"),
    ],
)
def test_any_other_file_is_refused_with_what_it_is_and_what_to_do(path, content, words):
    if content is not None:
        path.write_bytes(content)
    for read in (read_token_header, TokenFile):
        with pytest.raises(InputError, match=words) as caught:
            read(path)
        problem = caught.value.problems[0]
        assert (problem.key, problem.value) == ("trainer.data.path", str(path))
        assert "parlay prepare" in problem.fix


def test_what_is_no_plain_file_and_no_path_is_refused_without_waiting_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in [
        *((path, "not a regular file") for path in (tmp_path / "pipe", Path("/dev/zero"))),
        *((Path(path), "cannot be read") for path in ("/", "a\0b", "x" * 5000, "/etc/passwd/x")),
    ]:
        with pytest.raises(InputError, match=words):
            read_token_header(path)


LENGTHS = (3, 5, 1, 17, 2, 8, 4, 30, 1)


@pytest.mark.parametrize("seq_length", [1, 4, 7, 35, 70])
def test_documents_are_cut_where_a_sequence_begins_and_ends(path, seq_length):
    header = write_documents(path, document_ids(LENGTHS))
    assert (header.num_documents, header.num_tokens) == (len(LENGTHS), 71)
    owner = [document for document, length in enumerate(LENGTHS) for _ in range(length)]
    count = header.num_samples(seq_length)
    found = TokenFile(path).document_lengths([*range(count), count + 1], seq_length)
    sequences = [owner[k % count * seq_length :][:seq_length] for k in (*range(count), count + 1)]
    assert found == [tuple(len(list(same)) for _, same in groupby(sequence)) for sequence in sequences]
    lengths = [length for sequence in found[:count] for length in sequence]
    mean = sum(length**2 for length in lengths) / sum(lengths)  # of a token's document in its sequence
    assert TokenFile(path).mean_document_length(seq_length) == mean


def test_a_document_without_tokens_is_none_and_the_checksum_tells_where_documents_end(path):
    header = write_documents(path, [[], [1, 2, 3], [], [4]])
    assert (header.num_documents, TokenFile(path).document_lengths([0], 3)) == (2, [(3,)])
    assert write_documents(path, [[1, 2], [3]]).checksum != write_documents(path, [[1], [2, 3]]).checksum


def test_ends_that_are_not_those_of_documents_are_refused(path):
    header = write_documents(path, document_ids(LENGTHS))
    raw = bytearray(path.read_bytes())
    struct.pack_into("<Q", raw, header.first_end_byte + 8, 1)
    path.write_bytes(raw)
    file = TokenFile(path)
    for read in (lambda: file.mean_document_length(7), lambda: file.document_lengths([0], 7)):
        with pytest.raises(InputError, match="do not end one after another"):
            read()


def test_the_tokens_are_for_the_model(path):
    header = write_tokens(path, range(17))
    assert require_tokens({"path": str(path)}, MODEL) == header
    with pytest.raises(InputError, match=r"vocabulary of 64, the model one of 63") as caught:
        require_tokens({"path": str(path)}, replace(MODEL, vocab_size=63))
    assert "raise model.vocab_size to 64" in caught.value.problems[0].fix
    with pytest.raises(InputError, match="17 tokens, too few for one sequence of 17"):
        require_tokens({"path": str(path)}, replace(MODEL, seq_length=17))


def test_another_file_in_the_same_place_is_not_the_same(path):
    header = write_tokens(path, range(40))
    pinned = {"path": str(path), "num_tokens": header.num_tokens, "checksum": header.checksum}
    require_tokens(pinned, MODEL)
    for ids, name in (([*range(39), 0], "checksum"), (range(41), "num_tokens")):
        write_tokens(path, ids)
        with pytest.raises(InputError, match=f"is another file than it was: its {name}"):
            require_tokens(pinned, MODEL)


def sealed(raw: bytearray) -> bytes:
    """The header with a correct checksum."""
    struct.pack_into("<I", raw, HEADER_BYTES - 4, zlib.crc32(bytes(raw[:-4])))
    return bytes(raw)
