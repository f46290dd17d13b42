"""Escaping and masking of untrusted text."""

from __future__ import annotations

import pytest

from dashboards.text import cut_word, mask_credentials, one_line, printable


@pytest.mark.bad_input(50)
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe ± 1", "größe ± 1"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("abc\u202edef", r"abc\u202edef"),
        ("a\u2028b", r"a\u2028b"),
    ],
)
def test_what_could_steer_a_terminal_is_spelled_out(text, shown):
    assert printable(text) == shown


def test_a_password_in_an_address_is_not_shown_and_a_long_word_is_cut_in_its_middle():
    assert mask_credentials("postgresql://me:secret@db/mlflow") == "postgresql://***@db/mlflow"
    assert mask_credentials("http://host:5000/a@b") == "http://host:5000/a@b"
    assert cut_word("XLA_FLAGS=--one --two --three", 15) == "XLA_FLA…--three"
    assert cut_word("short", 15) == "short"


@pytest.mark.security("secrets")
def test_an_error_is_reported_in_one_line_without_secrets():
    error = ConnectionError("no answer from http://me:secret@host\x1b[1m\nand a long story")
    assert one_line(error) == r"ConnectionError: no answer from http://***@host\x1b[1m"
    assert one_line(KeyError()) == "KeyError: "
