"""A script's work is bounded: each of these would take minutes, or all memory."""

from __future__ import annotations

import pytest

from orchestrator.importers.bash.script import read_script
from orchestrator.importers.bash.values import LARGEST_TEXT, Budget, Part, Piece, split
from search_spaces.errors import InputError

pytestmark = pytest.mark.slow

BLANK_LINES = 'A="' + "\n" * 90_000 + '"\n'
ARRAY = "A=(" + "a " * 60_000 + ")\n"


def repeated(text: str) -> str:
    return text * (LARGEST_TEXT // len(text) - 1)


@pytest.mark.parametrize("text", ["A=(", ")", "))", "\0", "${a%"])
def test_a_text_that_the_parser_reads_again_and_again_is_refused(text):
    with pytest.raises(InputError, match="too often"):
        read_script(repeated(text))


def test_long_texts_have_one_limit_however_they_come():
    line = "A=1 # a comment of some length, as in scripts that people write\n"
    assert len(read_script(repeated(line)).variables) == 1
    read_script("X=" + "1" * 100_000 + "\nA=(1 2)\nB=${A[" + "+".join(["X"] * 50_000) + "]}\n")
    pieces = tuple(Piece("a", line) for line in range(1, 200_000))
    assert list(split([Part((piece,)) for piece in pieces])) == [pieces]
    read_script("for i in a b; do ((" + "a" * 200_000 + ")); done")
    with pytest.raises(InputError, match="1048576 characters"):
        read_script("source x", lambda path: "A=1\n" * LARGEST_TEXT)
    budget = Budget()
    assert budget.matches("abc", "a*c")
    with pytest.raises(InputError, match="too often"):
        budget.matches("a" * 100_000, "a*" * 5_000)


@pytest.mark.parametrize(
    "text",
    [
        BLANK_LINES + "B=${#A}\n" * 15_000,
        ARRAY + "B=${#A[@]}\n" * 10_000,
        ARRAY + "A[1]=b\n" * 12_000,
        BLANK_LINES + "if $u;then A+=x;fi\n" * 8_000,
        "set -- " + "a " * 80_000 + "\n" + "shift\n" * 9_000,
        "X=c" + "a" * 4_094 + "\n" + "Y=${X%*c*}\n" * 2_000,
        "X=" + "a" * 100_000 + '\ncase "$X" in\n' + "*b*[!a]*) ;;\n" * 9_000 + "esac",
        "g(){ while true; do " + "A=1; " * 30_000 + "done; }\n" + "g\n" * 10_000,
        'X="' + "a " * 50_000 + '"\nrun' + " $X" * 50_000,
    ],
    ids=range(9),
)
def test_reading_and_matching_long_values_again_and_again_is_refused(text):
    with pytest.raises(InputError, match="too often"):
        read_script(text)
