from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.importers.bash.script import read_script
from search_spaces.errors import InputError


def last_command(text: str) -> list[str]:
    return [word.text for word in read_script(text).commands[-1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=2\nrun --tp ${A}", ["run", "--tp", "2"]),
        ("A=2; run --tp $A # comment", ["run", "--tp", "2"]),
        ("A='x y'\nrun $A", ["run", "x", "y"]),
        ("export A=2 B=3\nrun $A$B", ["run", "23"]),
        ("A=2 B=$A run $B", ["run", "$B"]),
        ('ARGS=(\n  --a 1 # one\n  # --b 2\n  "--c"\n)\nrun "${ARGS[@]}"', ["run", "--a", "1", "--c"]),
        ("ARGS=(--a)\nARGS+=(--b)\nrun ${ARGS[*]}", ["run", "--a", "--b"]),
        ('ARGS="\n  --a 1 \\\n  --b 2"\nrun $ARGS', ["run", "--a", "1", "--b", "2"]),
        ("run --a \\\n  --b \\\n  # not --c \\\n  --d", ["run", "--a", "--b", "--d"]),
        ("A=4\nB=$((A * 2 / 3))\nrun $B", ["run", "2"]),
        ("A=4\nB=$(( ($A + 2) % 4 ))\nrun $B", ["run", "2"]),
        ("run ${A:-7}", ["run", "7"]),
        ("A=1\nrun ${A:-7}", ["run", "1"]),
        ("A=1\nrun '$A'", ["run", "$A"]),
        ("A=1\r\nrun $A\r\n", ["run", "1"]),
        ("cd x && run a | tee b", ["tee", "b"]),
        ("for i in 1 2; do\n run $i\ndone", ["run", "$i"]),
        ("A=1\nstart() {\n A=2\n}\nrun $A", ["run", "1"]),
        ("A=1\ncase $X in\n a) A=2 ;;\nesac\nrun $A", ["run", "$A"]),
        ("A=1\n[ -z $X ] && A=2\nrun $A", ["run", "$A"]),
        ("A=1\nif true; then A=1; else A=1; fi\nrun $A", ["run", "1"]),
    ],
)
def test_the_words_of_a_command_are_what_bash_would_make_them(text, words):
    assert last_command(text) == words


@pytest.mark.parametrize("word", ["$A", "${A}", "$1", "${A##*/}", "$(hostname)", "`date`", "$((A/0))", "$((9**9**9))"])
def test_what_is_not_known_stays_as_written(word):
    assert last_command(f"run {word}") == ["run", word]


def test_here_documents_are_no_commands_and_are_expanded():
    script = read_script('B=8\ncat <<EOF > f.json\n{"batch": $B, "x": "${C}"}\nEOF\nrun')
    assert script.documents == {"f.json": '{"batch": 8, "x": "${C}"}\n'}
    assert [word.text for word in script.commands[-1]] == ["run"]


def test_options_a_condition_adds_are_reported():
    script = read_script('A="--x"\nif [ $Y = 1 ]; then\n A="$A --y"\nfi\nrun $A')
    assert [word.text for word in script.commands[-1]] == ["run", "--x"]
    assert script.notes == ("--y is added under a condition that the script does not decide; it was left out.",)


def test_a_script_that_grows_without_bound_is_refused():
    doubling = "A=xxxxxxxx\n" + 'A="$A $A"\n' * 30
    with pytest.raises(InputError, match="characters"):
        read_script(doubling)


@pytest.mark.security("no_shell")
@given(st.text(alphabet="A=$({\"' `\\\n#})[]@1;|&<E", max_size=200))
def test_no_text_breaks_the_reader(text):
    read_script(text)
