"""A script's work is bounded: each of these would take minutes, or all memory."""

from __future__ import annotations

from contextlib import suppress

import pytest

from orchestrator.config.importers.bash.script import read_script
from orchestrator.config.importers.bash.values import LARGEST_TEXT
from search_spaces.errors import InputError

pytestmark = pytest.mark.slow

BLANK_LINES = 'A="' + "\n" * 90_000 + '"\n'
ARRAY = "A=(" + "a " * 60_000 + ")\n"
LONG = "X=" + "a" * 100_000 + "\n"


def repeated(text: str) -> str:
    return text * (LARGEST_TEXT // len(text) - 1)


@pytest.mark.parametrize("text", ["A=(", ")", "))", "\0", "${a%"])
def test_a_text_that_the_parser_reads_again_and_again_is_refused(text):
    with pytest.raises(InputError, match="too often"):
        read_script(repeated(text))


@pytest.mark.parametrize(
    "text",
    [
        BLANK_LINES + '[ "$A" = 1 ]\n' * 10_000,
        BLANK_LINES + "if $u;then A+=x;fi\n" * 8_000,
        ARRAY + 'B=("${A[@]}")\n' * 10_000,
        LONG + ("B=$((" + "X+" * 490 + "X))\n") * 160,
        LONG + 'case "$X" in\n' + "*b*[!a]*) ;;\n" * 9_000 + "esac",
        "g(){ while true; do " + "A=1; " * 30_000 + "done; }\n" + "g\n" * 10_000,
        'X="' + "a " * 50_000 + '"\nrun' + " $X" * 50_000,
        "".join(f"f{i}() {{ f{i + 1}; f{i + 1}; }}\n" for i in range(30)) + "f0",
    ],
    ids=range(8),
)
def test_reading_and_matching_long_values_again_and_again_is_refused(text):
    with pytest.raises(InputError, match="too often"):
        read_script(text)


@pytest.mark.parametrize(
    "text",
    [
        *("(" * 20_000, "$(" * 20_000, "if a; then " * 5_000, "a|" * 100_000, "for i in a; do " * 5_000),
        *("f() { f; f; }\n" * 3 + "f", "for i in a b; do ((" + "a" * 200_000 + ")); done"),
    ],
    ids=range(7),
)
def test_nesting_and_repetition_end(text):
    with suppress(InputError):
        read_script(text)


def test_long_texts_have_one_limit_however_they_come():
    line = "A=1 # a comment of some length, as in scripts that people write\n"
    assert len(read_script(repeated(line)).variables) == 1
    for text in ("A=xxxxxxxx\n" + 'A="$A $A"\n' * 30, "source x"):
        with pytest.raises(InputError, match="characters"):
            read_script(text, lambda path: "A=1\n" * LARGEST_TEXT)
