"""Tokenizers: bytes, and a tokenizer.json made here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from search_spaces.errors import InputError
from trials.data.tokenizer import open_tokenizer

WORDS = {"[UNK]": 0, "good": 1, "day": 2, "<|endoftext|>": 3, "stop": 7}


def write_tokenizer(folder: Path, vocabulary: dict[str, int] = WORDS, **fields) -> Path:
    """A tokenizer.json with these words; others are [UNK]."""
    path = folder / "tokenizer.json"
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    words = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    given = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": words}
    path.write_text(json.dumps(empty | given | fields))
    return path


def test_bytes_are_the_tokens_of_a_text():
    tokenizer = open_tokenizer("bytes")
    assert [list(ids) for ids in tokenizer.encode(["hé", ""])] == [[104, 0xC3, 0xA9], []]
    assert (tokenizer.vocab_size, tokenizer.end_of_text, tokenizer.checksum) == (257, 256, None)


def test_a_tokenizer_json_gives_its_own_ids(tmp_path):
    tokenizer = open_tokenizer(str(write_tokenizer(tmp_path)))
    assert tokenizer.encode(["good day", "day x good"]) == [[1, 2], [2, 0, 1]]
    assert (tokenizer.name, tokenizer.end_of_text) == ("tokenizer.json", 3)
    assert tokenizer.checksum.startswith("sha256:")
    assert tokenizer.vocab_size == 8, "to the highest id and not only to the number of tokens"
    assert open_tokenizer(str(write_tokenizer(tmp_path, {"[UNK]": 0}))).end_of_text is None


def test_texts_are_neither_cut_nor_filled_up_nor_framed_whatever_the_file_says(tmp_path):
    truncation = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0}
    padding |= {"pad_type_id": 0, "pad_token": "[UNK]"}
    frame = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "stop", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"stop": {"id": "stop", "ids": [7], "tokens": ["stop"]}},
    }
    path = write_tokenizer(tmp_path, truncation=truncation, padding=padding, post_processor=frame)
    assert open_tokenizer(str(path)).encode(["good day"]) == [[1, 2]]


def test_the_end_of_a_text_may_be_named(tmp_path):
    path = str(write_tokenizer(tmp_path))
    assert open_tokenizer(path, "stop").end_of_text == 7
    with pytest.raises(InputError, match="has no token 'halt'"):
        open_tokenizer(path, "halt")
    with pytest.raises(InputError, match="has its own end-of-text token"):
        open_tokenizer("bytes", "stop")


@pytest.mark.parametrize("content", [None, b"", b"{}", b"no json", b"\xff\xfe", b'{"model": 3}'])
def test_what_is_no_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"tokenizer\.json") as caught:
        open_tokenizer(str(path))
    assert caught.value.problems[0].key == "--tokenizer"


def test_without_the_library_the_way_to_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert open_tokenizer("bytes").vocab_size == 257
    with pytest.raises(InputError, match=r"pip install 'parlay\[prepare\]', or take --tokenizer bytes"):
        open_tokenizer(str(write_tokenizer(tmp_path)))
