"""Conversion of JSON lines to a token file: joined fields, rejected lines, and no partial files."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.errors import ExternalError, InputError
from trials.data import writer
from trials.data.prepare import Preparation, ProgressListener, prepare, text_of
from trials.data.token_file import TokenFile, read_token_header
from trials.data.tokenizer import ByteTokenizer, Tokenizer
from trials.data.writer import TokenWriter

BYTES = ByteTokenizer()
FIELDS = ("context", "instruction", "response")


def write_lines(path: Path, *lines: object) -> str:
    """A file with these lines: bytes and texts as they are, anything else as JSON."""
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


def prepared(inputs: tuple[str, ...], out: Path, **options: object):
    return prepare(Preparation(inputs, ("text",), **options), BYTES, out)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, [*"abcéxy".encode()]),
        ({"limit": 4}, [*"abcéx".encode()]),
        ({"append_eos": True, "limit": 3}, [*b"ab", 256, *b"c", 256, *"é".encode(), 256]),
    ],
    ids=["all", "limit", "ends"],
)
def test_texts_follow_one_another_in_the_order_of_inputs_and_lines(tmp_path, lines, out, options, tokens):
    second = tmp_path / "b.jsonl"
    second.write_bytes(b'{"text": "x"}\r\n{"text": "y"}')  # the last line may lack its end
    header, progress = prepared((lines, str(second)), out, **options)
    assert tokens_in(out) == tokens
    assert header == read_token_header(out)
    num_texts = options.get("limit", 5)
    assert (progress.num_documents, progress.num_tokens, progress.num_skipped) == (num_texts, len(tokens), 0)
    assert (header.made["eos"], header.vocab_size) == (256 if "append_eos" in options else None, 257)
    if not options:
        assert progress.bytes_read == Path(lines).stat().st_size + second.stat().st_size


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@pytest.mark.slow
@given(st.lists(TEXT, min_size=3, max_size=3).filter(any), st.sampled_from(["", "\n", " | "]))
def test_fields_are_joined_in_the_order_given_whatever_theirs_in_the_line(texts, separator):
    line = json.dumps(dict(zip(reversed(FIELDS), reversed(texts), strict=True))).encode()
    assert text_of(line, FIELDS, separator) == separator.join(text for text in texts if text)


@pytest.mark.parametrize(
    ("line", "fields", "text"),
    [
        (b'{"id": 1, "id": 2, "text": "some"}', ("text",), "some"),
        (b'{"context": "", "instruction": "do", "response": "done"}', FIELDS, "do\ndone"),
    ],
    ids=["other-key-twice", "empty-field"],
)
def test_the_text_of_a_line(line, fields, text):
    assert text_of(line, fields, "\n") == text


BAD_LINES = [
    (b"", "the line is empty"),
    (b"  ", "the line is empty"),
    (b"[1, 2]", r"not a JSON object but \[1, 2\]"),
    (b"null", "not a JSON object but null"),
    (b'{"text": ', "not JSON: "),
    (b"\xef\xbb\xbf{}", "not JSON: Unexpected UTF-8 BOM"),
    (b'{"text": "\xff"}', "byte 0xff at 11 is not UTF-8"),
    (b'{"other": "x"}', "text: missing"),
    (b'{"text": 3}', "text: 3 is not text"),
    (b'{"text": null}', "text: null is not text"),
    (b'{"text": ""}', "text: empty"),
    (b'{"text": "\\ud800"}', "half of a surrogate pair"),
    (b"[" * 10_000, "not JSON: "),
    (b'{"text": "one", "text": "another"}', "not JSON: the key 'text' appears twice"),
]


@pytest.mark.parametrize(("line", "words"), BAD_LINES)
def test_a_bad_line_is_named_with_its_place_and_its_rule_and_leaves_nothing(tmp_path, out, line, words):
    name = write_lines(tmp_path / "a.jsonl", {"text": "good"}, line, {"text": "good"})
    with pytest.raises(InputError, match=words) as caught:
        prepare(Preparation((name,), ("text",)), BYTES, out)
    problem = caught.value.problems[0]
    assert (problem.file, problem.line) == (name, 2)
    assert "JSON object with text under text," in problem.rule
    assert "--skip-bad" in problem.fix
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_bad_lines_may_be_left_out_and_are_counted_and_told(tmp_path, out):
    name = write_lines(tmp_path / "a.jsonl", *(line for line, _ in BAD_LINES), {"text": "ab"}, b"{}")
    told = []
    wanted = Preparation((name,), ("text",), skip_bad=True)
    header, progress = prepare(wanted, BYTES, out, ProgressListener(on_skipped=told.append))
    assert tokens_in(out) == [*b"ab"]
    assert progress.num_skipped == header.made["num_skipped"] == len(told) == len(BAD_LINES) + 1
    assert [problem.line for problem in told] == [*range(1, len(BAD_LINES) + 1), len(BAD_LINES) + 2]


def test_a_line_without_end_is_not_read_whole(tmp_path, out, monkeypatch):
    monkeypatch.setattr("trials.data.prepare.LONGEST_LINE_BYTES", 100)
    name = write_lines(tmp_path / "a.jsonl", {"text": "ab"}, {"text": "x" * 1000}, {"text": "c"})
    with pytest.raises(InputError, match="more than 100 bytes"):
        prepare(Preparation((name,), ("text",)), BYTES, out)
    prepare(Preparation((name,), ("text",), skip_bad=True), BYTES, out)
    assert tokens_in(out) == [*b"abc"]


@pytest.mark.parametrize("skip_bad", [False, True])
def test_no_text_at_all_is_no_file(tmp_path, out, skip_bad):
    name = write_lines(tmp_path / "a.jsonl", *([b"{}"] if skip_bad else []))
    with pytest.raises(InputError, match=f"0 texts, {int(skip_bad)} lines left out"):
        prepare(Preparation((name,), ("text",), skip_bad=skip_bad), BYTES, out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["absent.jsonl", "", "a\0b"])
def test_an_input_that_cannot_be_read_leaves_nothing(tmp_path, lines, out, name):
    with pytest.raises(InputError, match="cannot be read"):
        prepare(Preparation((lines, name and str(tmp_path / name)), ("text",)), BYTES, out)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_nothing_is_written_over(tmp_path, lines, out):
    before = Path(lines).read_bytes()
    with pytest.raises(InputError, match="is one of the inputs"):
        prepare(Preparation((lines,), ("text",)), BYTES, Path(lines))
    out.symlink_to("nowhere")
    with pytest.raises(InputError, match="exists"):
        prepare(Preparation((lines,), ("text",)), BYTES, out)
    assert Path(lines).read_bytes() == before
    assert out.is_symlink()


@pytest.mark.parametrize("place", ["absent/tokens.bin", "a.jsonl/tokens.bin", "x" * 300, "/proc/tokens.bin", ""])
def test_a_place_where_nothing_can_be_written_is_refused(tmp_path, lines, place):
    with pytest.raises(InputError) as caught:
        prepare(Preparation((lines,), ("text",)), BYTES, tmp_path / place)
    assert caught.value.problems[0].key == "--out"
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


class FullDisk:
    """A stream that takes this many bytes and no more."""

    def __init__(self, stream, room: int):
        self._stream = stream
        self._room = room

    def write(self, raw: bytes) -> int:
        self._room -= len(raw)
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._stream.write(raw)

    def __getattr__(self, name):
        return getattr(self._stream, name)


@pytest.mark.parametrize("room", [0, 3, 10, 100])
def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path, lines, out, room, monkeypatch):
    opened = writer._opened
    monkeypatch.setattr("trials.data.writer._opened", lambda *paths: FullDisk(opened(*paths), room))
    with pytest.raises(ExternalError, match=r"could not be written: No space left on device; nothing of it is left"):
        prepare(Preparation((lines,), ("text",)), BYTES, out)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fields": ()}, "--fields"),
        ({"fields": ("a", "")}, "--fields"),
        ({"fields": ("a", "b", "a")}, "each once"),
        ({"fields": ("a" * 300,), "separator": "b" * 300}, "at most 500 characters"),
        ({"inputs": ("-", "-")}, "standard input can be read once"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(InputError, match=words):
        Preparation(**{"inputs": ("a",), "fields": ("text",)} | options)


class Endless(ByteTokenizer):
    name = "endless"
    end_of_text = None


class Wild(Tokenizer):
    name, checksum, vocab_size, end_of_text = "wild", None, 10, None

    def encode(self, texts):
        return [[3, 10]]


def test_an_end_that_the_tokenizer_does_not_have_is_asked_for(lines, out):
    with pytest.raises(InputError, match="no known end-of-text token") as caught:
        prepare(Preparation((lines,), ("text",), append_eos=True), Endless(), out)
    assert "--eos-token" in caught.value.problems[0].fix


def test_ids_outside_of_the_vocabulary_are_not_written(tmp_path, lines, out):
    with pytest.raises(ValueError, match="id 10 is not one of 10"):
        prepare(Preparation((lines,), ("text",)), Wild(), out)
    with pytest.raises(ValueError, match="an id is not one of 10"), TokenWriter(out, 10) as writer:
        writer.append([-1])
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def interrupt(progress=None):
    raise KeyboardInterrupt


@pytest.mark.parametrize("is_open", [False, True], ids=["as-soon-as-the-file-is-there", "while-it-is-written"])
def test_an_interrupt_leaves_nothing(tmp_path, lines, out, monkeypatch, is_open):
    def opened_and_interrupted(path: Path, mode: str):
        open_beside(path, mode).close()
        interrupt()

    open_beside = Path.open
    if not is_open:
        monkeypatch.setattr("trials.data.writer.Path.open", opened_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(Preparation((lines,), ("text",)), BYTES, out, ProgressListener(interrupt))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_the_header_tells_how_the_file_was_made_with_the_longest_options(tmp_path, out):
    name = "\x01" * 499
    line = write_lines(tmp_path / "a.jsonl", {name: "ab"})
    header, _ = prepare(Preparation((line,), (name,), separator="\x02", limit=2), BYTES, out)
    assert read_token_header(out) == header
    made = dict(header.made)
    assert made.pop("created_at").endswith("Z")
    told = {"tokenizer": "bytes", "tokenizer_checksum": None, "fields": [name], "separator": "\x02", "eos": None}
    assert made == {**told, "num_inputs": 1, "num_skipped": 0}
