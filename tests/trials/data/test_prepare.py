"""Conversion of JSON lines to a token file by bytes and a tokenizer.json, rejected lines, and no partial files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.errors import InputError
from trials.data.prepare import Preparation, ProgressListener, prepare
from trials.data.token_file import TokenFile, read_token_header
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
