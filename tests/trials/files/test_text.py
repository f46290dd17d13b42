"""The end of texts and logs, and escape sequences."""

from __future__ import annotations

from pathlib import Path

import pytest

from trials.files.text import last_line, plural, tail, without_escapes


@pytest.mark.parametrize(
    ("text", "line"),
    [("Traceback\n  File x\nValueError: no\n\n", "ValueError: no"), ("one", "one"), (" \n\n", ""), ("", "")],
)
def test_the_last_line_is_the_last_that_says_something(text: str, line: str):
    assert last_line(text) == line


def test_a_tail_is_the_last_lines_of_a_file_of_which_no_more_is_read(tmp_path: Path):
    log = tmp_path / "log"
    with pytest.raises(FileNotFoundError):
        tail(log, 3)
    log.write_bytes(b"one\ntwo\nthr\xffee\n")
    assert tail(log, 2) == "two\nthr\N{REPLACEMENT CHARACTER}ee"
    assert tail(log, 9).startswith("one\n")
    log.write_bytes(b"x" * 2**20 + b"\nthe end\n")
    assert tail(log, 1) == "the end"
    assert len(tail(log, 2)) == 2**16 - 1


def test_one_is_said_as_one():
    assert [plural(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
    assert [plural(count, "search") for count in (1, 2)] == ["1 search", "2 searches"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m and \x1b[Kplain", "red and plain"),
        ("\x1b]0;a title\x07words \x1b]8;;http://x\x1b\\a link", "words a link"),
        ("[Rank 3] 50 % | µ", "[Rank 3] 50 % | µ"),
        ("cut \x1b[38;5", "cut \x1b[38;5"),
    ],
)
def test_what_steers_a_terminal_is_taken_out_of_a_text(text: str, plain: str):
    assert without_escapes(text) == plain
