"""Token files: made of JSON lines by bytes or a tokenizer.json, read back as written, and others refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.errors import InputError
from tests.trials.token_files import write_tokens
from trials.data.prepare import Preparation, ProgressListener, prepare
from trials.data.token_file import HEADER_BYTES, TokenFile, TokenHeader, read_token_header
from trials.data.tokenizer import ByteTokenizer, open_tokenizer

BYTES = ByteTokenizer()


def write_lines(path: Path, *lines: object) -> str:
    """A file with these lines: bytes as they are, anything else as JSON."""
    raws = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(raw + b"\n" for raw in raws))
    return str(path)


def tokens_in(path: Path) -> list[int]:
    file = TokenFile(path)
    return file.samples([0], file.header.num_tokens - 1).tolist()


@pytest.fixture
def lines(tmp_path) -> str:
    return write_lines(tmp_path / "a.jsonl", {"text": "ab"}, {"text": "c", "more": 1}, {"text": "é"})


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "tokens.bin"


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, [*"abcéxy".encode()]),
        ({"append_eos": True, "limit": 3}, [*b"ab", 256, *b"c", 256, *"é".encode(), 256]),
    ],
    ids=["all", "ends-and-limit"],
)
def test_texts_follow_one_another_in_the_order_of_inputs_and_lines(tmp_path, lines, out, options, tokens):
    second = tmp_path / "b.jsonl"
    second.write_bytes(b'{"text": "x"}\r\n{"text": "y"}')  # the last line may lack its end
    header, progress = prepare(Preparation((lines, str(second)), ("text",), **options), BYTES, out)
    assert tokens_in(out) == tokens
    assert header == read_token_header(out)
    num_texts = options.get("limit", 5)
    assert (progress.num_documents, progress.num_tokens, progress.num_skipped) == (num_texts, len(tokens), 0)
    assert (header.made["eos"], header.vocab_size) == (256 if "append_eos" in options else None, 257)


BAD_LINES = [
    (b"", "the line is empty"),
    (b"[1, 2]", r"not a JSON object but \[1, 2\]"),
    (b'{"text": ', "not JSON: "),
    (b'{"text": "\xff"}', "byte 0xff at 11 is not UTF-8"),
    (b'{"other": "x"}', "text: missing"),
    (b'{"text": 3}', "text: 3 is not text"),
    (b'{"text": ""}', "text: empty"),
    (b"[" * 10_000, "not JSON: "),
    (b'{"text": "one", "text": "another"}', "not JSON: the key 'text' appears twice"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_a_bad_line_is_named_with_its_place_and_leaves_nothing(tmp_path, out, line, words):
    name = write_lines(tmp_path / "a.jsonl", {"text": "good"}, line, {"text": "good"})
    with pytest.raises(InputError, match=words) as caught:
        prepare(Preparation((name,), ("text",)), BYTES, out)
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == (name, 2)
    assert "--skip-bad" in problem.fix
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_bad_lines_may_be_left_out_and_are_counted_and_told(tmp_path, out):
    name = write_lines(tmp_path / "a.jsonl", *(line for line, _ in BAD_LINES), {"text": "ab"}, b"{}")
    told = []
    wanted = Preparation((name,), ("text",), skip_bad=True)
    header, progress = prepare(wanted, BYTES, out, ProgressListener(on_skipped=told.append))
    assert tokens_in(out) == [*b"ab"]
    assert progress.num_skipped == header.made["num_skipped"] == len(told) == len(BAD_LINES) + 1


def test_a_tokenizer_json_gives_its_own_ids_and_what_is_none_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    vocabulary = {"[UNK]": 0, "good": 1, "day": 2, "<|endoftext|>": 3, "stop": 7}
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    given = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words}
    path.write_text(json.dumps(empty | given))
    tokenizer = open_tokenizer(str(path))
    assert tokenizer.encode(["good day", "day x good"]) == [[1, 2], [2, 0, 1]]
    assert (tokenizer.end_of_text, open_tokenizer(str(path), "stop").end_of_text) == (3, 7)
    assert tokenizer.vocab_size == 8, "to the highest id and not only to the number of tokens"
    path.write_bytes(b'{"model": 3}')
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        open_tokenizer(str(path))


HEADER = TokenHeader(2, 1000, 10, 64, "sha256:" + "ab" * 32, {"tokenizer": "bytes"})


@given(st.integers(0, HEADER_BYTES - 1), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_refused(position, change):
    raw = bytearray(HEADER.to_bytes())
    raw[position] ^= change
    with pytest.raises(ValueError, match=r"checksum|not a token file|version"):
        TokenHeader.from_bytes(bytes(raw))


@pytest.mark.parametrize("vocab_size", [2**16, 2**16 + 1])
def test_tokens_that_are_written_are_read_again(out, vocab_size):
    ids = [i * 7919 % vocab_size for i in range(100)] + [vocab_size - 1]
    header = write_tokens(out, ids, vocab_size)
    assert header.token_bytes == (2 if vocab_size <= 2**16 else 4)
    assert header == read_token_header(out)
    assert list(TokenFile(out).samples([0], 100)) == ids


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
def test_any_other_file_is_refused_with_what_it_is_and_what_to_do(out, content, words):
    out.write_bytes(content)
    for read in (read_token_header, TokenFile):
        with pytest.raises(InputError, match=words) as caught:
            read(out)
        problem = caught.value.problems[0]
        assert (problem.key, problem.value) == ("trainer.data.path", str(out))
        assert "parlay prepare" in problem.fix
