from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.importers.bash.script import Word, read_script
from search_spaces.errors import InputError

FRAGMENTS = (
    *("A=", "A+=", "B=1\n", "(", ")", "((", "))", "$((", "$(", "${A", "}", "${A[@]}", ":-", "%", "#", "[ ", " ]"),
    *("[[ ", " ]]", "if ", "; then ", "else ", "fi\n", "case $A in ", "esac\n", ";;", "for A in ", "; do "),
    *("done\n", "while ", "f() { ", "f ", "local ", "export ", "cat <<E > x\n", "E\n", "eval ", "bash -c "),
    *("<x>", "'", '"', "`", "$", "\\\n", "\n", " ", "--a ", "$1", '"$@"', "let ", "++", "set -- ", "shift\n"),
    *("exit\n", "&& ", "|| ", "| ", "\x00", "\xe9", "\ud800"),
)


def last_command(text: str) -> list[str]:
    return [word.text for word in read_script(text).commands[-1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=2\nrun --tp ${A}", ["run", "--tp", "2"]),
        ("A='x y'\nrun $A", ["run", "x", "y"]),
        ("A=2 B=$A run $B", ["run", "$B"]),
        ('ARGS=(\n  --a 1 # one\n  # --b 2\n  "--c"\n)\nrun "${ARGS[@]}"', ["run", "--a", "1", "--c"]),
        ("ARGS=(--a)\nARGS+=(--b)\nrun ${ARGS[*]}", ["run", "--a", "--b"]),
        ('ARGS="\n  --a 1 \\\n  --b 2"\nrun $ARGS', ["run", "--a", "1", "--b", "2"]),
        ("run --a `# --b 1` \\\n  --c `# 2`", ["run", "--a", "--c"]),
        ("A=4\nB=$((A * 2 / 3))\nrun $B", ["run", "2"]),
        ("run ${A:-7}", ["run", "7"]),
        ("cd x && run a | tee b", ["tee", "b"]),
        ("for i in 1 2; do\n run $i\ndone", ["run", "$i"]),
        ("A=1\ncase $X in\n a) A=2 ;;\nesac\nrun $A", ["run", "$A"]),
        ("A=1\n[ -z $X ] && A=2\nrun $A", ["run", "$A"]),
        ('A="--a"\nrun "$A $A"', ["run", "--a --a"]),
        ('A=("0:16 2.4B:320" c)\nrun "${A[@]}"', ["run", "0:16 2.4B:320", "c"]),
        ('A=("0:16 2.4B:320" c)\nrun ${A[@]} ${#A[@]}', ["run", "0:16", "2.4B:320", "c", "2"]),
        ('A=(a b)\nrun "${A[*]}" "${A[1]}"', ["run", "a b", "b"]),
        ("A=ckpt.pt\nrun ${A%.*} ${A#*.}", ["run", "ckpt", "pt"]),
        ("run ${A:=3} $A", ["run", "3", "3"]),
        ("A=4\n((A++))\n((--A))\n((A += 1))\nlet B=A*2\nrun $A $B", ["run", "5", "10"]),
        ("A=3\nrun $(expr $A \\* 2) `expr 1 + 1`", ["run", "6", "2"]),
        ('run $(dirname "$0")/x $(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/y', ["run", "./x", "./y"]),
        ('A=x\nif [[ $A == y* || -z "$A" ]]; then B=1; elif [[ $A =~ ^x ]]; then B=2; fi\nrun $B', ["run", "2"]),
        ("A=7b\ncase $A in 1b) B=1 ;; 7*|8b) B=2 ;; *) B=3 ;; esac\nrun $B", ["run", "2"]),
        ("A=1\n[ $A = 1 ] && B=2 || B=3\nrun $B", ["run", "2"]),
        ("if [ -f x ]; then A=1; else A=2; fi\nrun $A", ["run", "$A"]),
        ("if [ $# -lt 1 ]; then A=2; exit 1; else A=1; fi\nrun $A", ["run", "1"]),
        ('start() { run "$1" "${@:2}"; }\nstart "a b" c', ["run", "a b", "c"]),
        ("start() { local A=2; }\nA=1\nstart\nrun $A", ["run", "1"]),
        ("A=8\nwhile [[ $# -gt 0 ]]; do A=$2; shift; done\nrun $A", ["run", "8"]),
        ("(A=2)\nA=${A:-1}\nrun $A &> log", ["run", "1"]),
        ("A=2\nsrun bash -c \"run --tp $A 'b c'\"", ["run", "--tp", "2", "b c"]),
        ("run --data <Specify path> --b", ["run", "--data", "<Specify path>", "--b"]),
        ("A=1\nA=2 true\nbash -c 'run ${A:-3}'", ["run", "3"]),
        ("env -i A=2 bash -c 'run $A'", ["run", "2"]),
        ("cat > x.sh <<'E'\n#!/bin/bash\nrun $A\nE\nsbatch --export=ALL,A=2 x.sh", ["run", "2"]),
        ('A=2\nrun ${A:+--x "$A" --y}', ["run", "--x", "2", "--y"]),
        ("A=x\n[ $A = y ] || exit 2\nrun a", ["run", "a"]),
        ("read -r -d '' A <<'E' || true\nrun --x\nE\nsrun bash -c \"$A\"", ["run", "--x"]),
    ],
)
def test_the_words_of_a_command_are_what_bash_would_make_them(text, words):
    assert last_command(text) == words


@pytest.mark.parametrize(
    "text", ["set -- a\nshift ²", "A=(1)\nA[²]=x", "exit ²", "exit ٣", "tee '' <<E\nabc\nE", "cat <<E | tee ''\nabc\nE"]
)
def test_other_digits_than_those_of_ascii_and_empty_words_are_no_numbers_and_no_files(text):
    assert read_script(text).notes == ()


@pytest.mark.parametrize("word", ["$A", "${A}", "$1", "${A##*/}", "$(hostname)", "`date`", "$((A/0))", "$((9**9**9))"])
def test_what_is_not_known_stays_as_written(word):
    assert last_command(f"run {word}") == ["run", word]


def test_comments_checks_and_here_documents_are_no_commands():
    script = read_script("run --a \\\n  # --b \\\n  --c")
    assert [word.text for word in script.commands[-1]] == ["run", "--a", "--c"]
    assert script.notes == ("Line 2: bash ends the command at this comment; what follows was read as well.",)
    script = read_script('IMAGE=\nif [ -z "$IMAGE" ]; then\n  echo "set IMAGE"\n  exit 1\nfi\nrun')
    assert [word.text for word in script.commands[-1]] == ["run"]
    assert script.notes == ("As it stands, the script ends with an error (line 4); it was read on.",)


@pytest.mark.parametrize(
    "text", ["run --a `date", "run --a $(date\nrun --b", 'run --a "b\nrun --c', "if true; then\n run"]
)
def test_a_script_that_cannot_be_parsed_as_a_whole_has_a_note(text):
    assert any("Line 1 could not be parsed" in note for note in read_script(text).notes)


def test_words_defaults_and_exports_are_those_that_are_known():
    script = read_script('A=8\nB=$A\nARGS=(\n  --tp $B\n)\nrun "${ARGS[@]}"')
    assert script.commands[-1][1:] == (Word("--tp", 4, ("ARGS",)), Word("8", 4, ("A", "B", "ARGS")))
    script = read_script("export A=${X:-8} B=$Y\nC=2\nD=1 run $A")
    assert script.defaults == {"X": "8"}
    assert script.exported == {"D": "1", "A": "8"}
    assert script.variables == {"A": "8", "C": "2"}
    script = read_script('A=$((N * 8))\nbash -c "run $A \\$N"', environment={"N": "4"})
    assert [word.text for word in script.commands[-1]] == ["run", "32", "4"]
    assert script.exported == {}


def test_options_a_condition_adds_are_reported():
    script = read_script('A="--x"\nif [ $Y = 1 ]; then\n A="$A --y"\nfi\nrun $A')
    assert [word.text for word in script.commands[-1]] == ["run", "--x"]
    assert script.notes == ("--y is added under a condition that the script does not decide; it was left out.",)
    script = read_script("if [ $Y = 1 ]; then A=--x; else A='--y 2'; fi\nrun $A")
    assert [note.split()[0] for note in script.notes] == ["--x", "--y"]


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("M=${1:-13b}\ncase $M in 1b) L=16 ;; 13b) L=40 ;; esac", ["$1 is taken as its default 13b; the command line"]),
        ('F=${F:-0}\nif [ "$F" = 1 ]; then A="--x"; fi\n[ $F = 1 ] && A=--y', ["F is taken as its default 0"]),
        ("N=${N:-2}\nif (( N > 1 )); then run --x; fi", ["N is taken as its default 2"]),
        ('T_TOKEN=${T_TOKEN:-abc}\nif [ -n "$T_TOKEN" ]; then A=1; fi', ["T_TOKEN is taken as its default; the env"]),
        ('V=${V:-0}\nif [ "$V" = 1 ]; then echo v; set -x; fi', []),
    ],
)
def test_a_default_that_decides_what_is_read_is_noted_once(text, notes):
    found = read_script(text).notes
    assert [note for note, start in zip(found, notes, strict=True) if not note.startswith(start)] == []


def test_a_command_finds_files_and_those_that_start_it_and_a_script_that_starts_itself_ends():
    script = read_script("echo a > f\nrun 1\necho b > f\nrun 2")
    found = [script.files_before(command)["f"] for command in script.commands if command[0].text == "run"]
    assert [file and file.text for file in found] == ["a\n", "b\n"]
    script = read_script("srun a\nsrun -n 2 bash -c 'eval run'\nsbatch <<E\nbash -c stop\nE")
    names = [[word.text for word in command] for command in script.commands]
    run, stop = (next(c for c in script.commands if c[0].text == name) for name in ("run", "stop"))
    assert [names[index][0] for index in script.chain(run)] == ["run", "srun"]
    assert [names[index][0] for index in script.chain(stop)] == ["stop", "bash", "sbatch"]
    assert [names[index][0] for index in script.jobs] == ["sbatch"]
    script = read_script("srun --ntasks=2 bash <<E\nrun --a\nE")
    assert [word.text for word in script.commands[-1]] == ["run", "--a"]
    read_script("echo bash run.sh > run.sh\nbash run.sh")


def test_what_cannot_be_parsed_is_noted_and_endless_growth_refused():
    script = read_script("A=1\nrun $A\nfi )\n")
    assert [word.text for word in script.commands[0]] == ["run", "1"]
    assert any("could not be parsed" in note for note in script.notes)
    doubling = "A=xxxxxxxx\n" + 'A="$A $A"\n' * 30
    with pytest.raises(InputError, match="characters"):
        read_script(doubling)


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("A=1\nrun $A", None),
        ("A=1 # change for your cluster\nrun $A", "its comment says: change for your cluster"),
        ("# Change for multinode config\nB=2\nA=1\n\nrun $A", "its comment says: Change for multinode config"),
        ("# Change for multinode config\nB=2\n\nA=1\nrun $A", None),
        ("A=(\n  1 # TODO\n)\nrun ${A[@]}", "its comment says: TODO"),
        ("run <path>", "it is a placeholder"),
        ("run --a=/path/to/data", "it is a placeholder"),
        ("run xxl", None),
    ],
)
def test_a_placeholder_says_why_it_is_asked_about(text, placeholder):
    assert read_script(text).commands[-1][-1].placeholder == placeholder


def test_a_sourced_file_is_read_in_place_or_noted_and_a_written_one_before_the_one_beside_the_script():
    script = read_script(". ./env.sh\nrun $A", {"./env.sh": "A=3"}.__getitem__)
    assert [word.text for word in script.commands[-1]] == ["run", "3"]
    assert read_script("source env.sh").notes == ("env.sh was not read; what it sets is missing.",)
    read_script("source x", lambda path: "source x")
    script = read_script("echo A=1 > env.sh\n. ./env.sh\nrun $A", {"./env.sh": "A=2"}.__getitem__)
    assert [word.text for word in script.commands[-1]] == ["run", "1"]
    script = read_script("make > env.sh\n. ./env.sh\nrun $A", {"./env.sh": "A=2"}.__getitem__)
    assert script.notes == ("./env.sh was not read; what it sets is missing.",)


@pytest.mark.parametrize(
    "text", ["f() { f; f; }\n" * 3 + "f", "(" * 20_000, "$(" * 20_000, "if a; then " * 5_000, "a|" * 100_000]
)
def test_nesting_and_repetition_end(text):
    with suppress(InputError):
        read_script(text)


@pytest.mark.security("no_shell")
@given(st.text(alphabet="A=$({\"' `\\\n#})[]@1;|&<E", max_size=200) | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_no_text_breaks_the_reader(text):
    with suppress(InputError):
        read_script(text)


def files_of(text: str) -> dict[str, str | None]:
    """The files that the script has written before its last command."""
    script = read_script(f"{text}\nrun")
    return {path: file and file.text for path, file in script.files_before(script.commands[-1]).items()}


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ('B=8\ncat <<E > f.json\n{"batch": $B}\nE', {"f.json": '{"batch": 8}\n'}),
        ("cat <<E > f.json\n$B\nE", {"f.json": None}),
        ("cat > ./a//f <<'E'\n$B\nE", {"a/f": "$B\n"}),
        ("tee f g <<E >/dev/null\na\nE", {"f": "a\n", "g": "a\n", "/dev/null": "a\n"}),
        ("cat <<E | sed s/a/b/ > f\na\nE", {"f": None}),
        ("N=\ncat <<E | $N > f\na\nE", {"f": None}),
        ("echo a > f\nprintf '%s\\n' b >> f", {"f": "a\nb\n"}),
        ("echo a >> f", {"f": None}),
        ("echo a > f\ncat f f > g", {"f": "a\n", "g": "a\na\n"}),
        ("echo a > f\ncp -f f g\nmv g h", {"f": "a\n", "g": None, "g/f": "a\n", "h": "a\n", "h/g": "a\n"}),
        ("echo a > f\nsed -i 's/a/b/' f", {"f": None, "s/a/b": None}),
        ("{ echo a; echo b; } > f", {"f": None}),
        ("[ -f f ] || echo a > f", {"f": None}),
        ("[ 1 = 2 ] && echo a > f", {}),
        ("echo a > f.json\npython train.py --deepspeed_config f.json", {"f.json": "a\n"}),
        ("echo a > f\nchmod +x f\ngrep a f", {"f": "a\n"}),
        ("echo a > f\nsudo sed -i s/a/b/ f", {"f": None, "s/a/b": None}),
        ("echo a > f\npython make.py --to=f", {"f": None}),
        ("echo -e a > f", {"f": None}),
        ("(echo a > f)\ntrue && echo b > g\nbash -c 'echo c > h'", {"f": "a\n", "g": "b\n", "h": "c\n"}),
    ],
)
def test_a_file_has_the_text_that_the_script_writes_or_is_not_known(text, files):
    assert files_of(text) == files


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [("echo a > f", "echo b > f", None), ("echo a > f", "echo a > ./f", "a\n"), ("echo a > f", "true", None)],
)
def test_after_an_undecided_condition_a_file_is_known_if_all_branches_write_the_same(first, second, text):
    assert files_of(f"if [ -f x ]; then {first}; else {second}; fi") == {"f": text}


@pytest.mark.parametrize("start", ["bash -x ./run.sh 8", "srun -n 2 sh run.sh 8", "./run.sh 8", "sbatch run.sh 8"])
def test_a_script_that_the_script_writes_is_read_where_it_is_started(start):
    script = read_script(f"A=2\ncat > run.sh <<E\n#!/bin/bash\nrun --a $A --b \\$1 \\$A\nE\nchmod +x run.sh\n{start}")
    assert [word.text for word in script.commands[-1]] == ["run", "--a", "2", "--b", "8", "$A"]
