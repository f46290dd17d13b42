from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.importers.bash.script import Word, read_script
from orchestrator.config.importers.launch_script import read_launch_script
from search_spaces.errors import InputError

FRAGMENTS = (
    *("A=", "A+=", "B=1\n", "(", ")", "((", "))", "$((", "$(", "${A", "}", "${A[@]}", ":-", "%", "#", "[ ", " ]"),
    *("[[ ", " ]]", "if ", "; then ", "else ", "fi\n", "case $A in ", "esac\n", ";;", "for A in ", "; do "),
    *("done\n", "f() { ", "f ", "export ", "cat <<E > x\n", "E\n", "eval ", "bash -c ", "'", '"', "`", "$", "\\\n"),
    *("\n", " ", "--a ", '"$@"', "let ", "++", "read ", "exit\n", "&& ", "|| ", "| ", "<x>", "\x00", "\xe9", "\ud800"),
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ARGS=(\n  --a 1 # one\n  # --b 2\n  "--c"\n)\nrun "${ARGS[@]}"', ["run", "--a", "1", "--c"]),
        ("run --a `# --b 1` \\\n  --c `# 2`", ["run", "--a", "--c"]),
        ("A=x B=y\nC=$A/$B.d\nrun $A/$B.c ${A}/$B $C a$D", ["run", "x/y.c", "x/y", "x/y.d", "a$D"]),
        ('A=\nrun a$A"b" "" $A "$A"', ["run", "ab", "", ""]),
        ("run ${A:-7} ${B:=3} $B", ["run", "7", "3", "3"]),
        ("cd x && run a | tee b", ["tee", "b"]),
        ('A=("0:16 2.4B:320" c)\nB="${A[*]}"\nrun "${A[@]}" "$B"', ["run", "0:16 2.4B:320", "c", "0:16 2.4B:320 c"]),
        ("run $(dirname \"$0\")/x $PWD/y", ["run", "./x", "./y"]),
        ('A=x\nif [[ $A == y* ]]; then B=1; elif [[ 3 -gt 2 ]]; then B=2; fi\nrun $B', ["run", "2"]),
        ("A=7b\ncase $A in 1b) B=1 ;; 7*|8b) B=2 ;; *) B=3 ;; esac\nrun $B", ["run", "2"]),
        ("A=x\n[ $A = y ] || exit 2\nrun a", ["run", "a"]),
        ("A=2\nsrun -n 4 bash -c \"cd x && run --tp $A 'b c'\"", ["srun", "-n", "4", "run", "--tp", "2", "b c"]),
        ("A=1\nexport B=2\ndocker run bash -c 'run ${A:-3} $B'", ["docker", "run", "run", "3", "2"]),
        ("srun bash <<E\nrun --a\nE", ["srun", "run", "--a"]),
        ("read -r -d '' A <<'E' || true\nrun --x\nE\nsrun bash -c \"$A\"", ["srun", "run", "--x"]),
        ("start() { local A=2; run $A; }\ntime start", ["run", "2"]),
        ("for i in 1 2; do A=3; run $A; done", ["run", "3"]),
    ],
)  # fmt: skip
def test_the_words_of_a_command_are_what_bash_would_make_them(text, words):
    assert [word.text for word in read_script(text).commands[-1]] == words


IN_A_BRANCH = "it is set under a condition that the script does not decide"


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("run $A", "the script does not set it"),
        ("run $(hostname)", "it is the output of a command"),
        ("A=x.pt\nrun ${A%.*}", "it is computed in a way that is not read"),
        ("A=1\nif $X; then A=16; fi\nrun $A", IN_A_BRANCH),
        ("A=1\nfor i in 1 2; do run $A; A=$((A * 2)); done", "it is set in a loop"),
        ("set_a() { A=2; }\nA=1\nset_a\nrun $A", "it is set in a function"),
        ("A=1\n(A=2)\nrun $A", "it is set in a sub-shell"),
        ("A=1\n{ A=2; } 2>&1 | tee log\nrun $A", "it is set in a sub-shell"),
        ("echo x | A=2\nrun $A", "it is set in a sub-shell"),
        ("A=1\nA=2 &\nrun $A", "it is set in a sub-shell"),
        ("f() { run $1; }\nf 2", "an argument of a function is not read"),
        ('f() { run "$@"; }\nf 2', "an argument of a function is not read"),
        ("f() { run ${1:-4}; }\nf 2", "an argument of a function is not read"),
        ("A=1\nread A\nrun $A", "it is set by read (line 2)"),
        ("A=1\n((A++))\nrun $A", "it is set by an arithmetic command"),
        ("A=(1 2)\nA[0]=3\nrun $A", "its elements are set one by one"),
        ("A=1 # change for your cluster\nrun $A", "its comment says: change for your cluster"),
        ("# Change for multinode config\nB=2\nA=1\n\nrun $A", "its comment says: Change for multinode config"),
        ("A=(\n  1 # TODO\n)\nrun ${A[@]}", "its comment says: TODO"),
        *((f"run --a {text}", "it is a placeholder") for text in ("{{a}}", "...", "__A__", "@A@", "%A%", "<path>")),
        ("run --a \\\n  # --b \\\n  --c", "bash ends the command before it"),
        ('A="run --a\n  --c"\nbash -c "$A"', "bash ends the command before it"),
        ("run gpu:your_own_gpu_per_node", "it is a placeholder"),
        ("# Change for multinode config\nB=2\n\nA=1\nrun $A", None),
        ("if [ $# -lt 1 ]; then A=2; exit 1; fi\nA=1\nrun $A", None),
    ],
)  # fmt: skip
def test_a_word_that_is_not_certain_says_why(text, doubt):
    found = read_script(text).commands[-1][-1].doubt
    assert found is None if doubt is None else found is not None and found.startswith(doubt)


@pytest.mark.parametrize(
    ("text", "certain", "doubted"),
    [
        ('A="--x"\nif [ $Y = 1 ]; then\n A="$A --y"\nfi\nrun $A', "--x", "--y"),
        ('A=" --x"\n[ -f y ] && A=" --y 1 ${A}"\nrun $A', "", "--x --y 1 --x"),
        ("A=(--x)\nif [ -f y ]; then A+=(--y); else A+=(--z); fi\nrun ${A[@]}", "--x", "--y --z"),
        ("A=(--x)\nfor i in a b; do A+=(--y $i); done\nrun ${A[@]}", "--x", "--y $i"),
        ("if [ $Y = 1 ]; then A=--x; else A='--y 2'; fi\nrun $A", "", "--x --y 2"),
        ('A=--x\nif [ -n "${Y:-}" ]; then A="$A --y"; fi\nrun $A ${Y:-}', "--x", "--y"),
    ],
)
def test_options_that_a_branch_adds_are_in_doubt_and_the_others_are_not(text, certain, doubted):
    words = read_script(text).commands[-1][1:]
    assert [word.text for word in words if word.doubt is None] == certain.split()
    assert [word.text for word in words if word.doubt] == doubted.split()


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("run --a `date", "Line 1 could not be parsed"),
        (
            'eval "$(python a.py)"',
            "The output of a command that line 1 evaluates was not read; what it sets is missing.",
        ),
        ("run --a \\\n  # --b \\\n  --c", "Line 3: --c was not read; bash ends the command before it."),
        ("M=${1:-13b}\ncase $M in 13b) L=40 ;; esac", "$1 is taken as its default 13b; the command line"),
        ('F=${F:-0}\nif [ "$F" = 1 ]; then A="--x"; fi\n[ $F = 1 ] && A=--y', "F is taken as its default 0"),
        ('T_TOKEN=${T_TOKEN:-abc}\nif [ -n "$T_TOKEN" ]; then A=1; fi', "T_TOKEN is taken as its default; the env"),
        ("source env.sh", "env.sh was not read; what it sets is missing."),
        ('A=\'eval "$A"\'\neval "$A"', "A script that is nested 8 levels deep was not read."),
    ],
)
def test_what_was_not_read_and_defaults_that_decide_have_one_note(text, note):
    (found,) = read_script(text).notes
    assert found.startswith(note)


def test_words_defaults_and_exports_are_those_that_are_certain():
    script = read_script('A=8\nB=$A\nARGS=(\n  --tp $B\n)\nrun "${ARGS[@]}"')
    assert script.commands[-1][1:] == (Word("--tp", 4, ("ARGS",)), Word("8", 1, ("A", "B", "ARGS")))
    script = read_script("export A=${X:-8} B=$Y\nC=2\nD=1 run $A")
    assert (script.defaults, script.exported) == ({"X": "8"}, {"D": "1", "A": "8"})
    assert (script.variables, script.exported_in_doubt) == ({"A": "8", "C": "2"}, ("B",))
    script = read_script('A=$((N * 8))\nbash -c "export B=1; run $A \\$N"', environment={"N": "4"})
    assert [word.text for word in script.commands[-1]] == ["run", "32", "4"]
    assert script.exported == {"B": "1"}
    read_script("source x", lambda path: "source x")
    assert not read_script("run --a \\\n").notes
    assert not read_script("while IFS=, read a; do run; done").exported


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (". ./env.sh\nrun $A", "3"),
        ("cd sub; source env.sh; run $A", "$A"),
        ('cd "$(dirname "$0")"; cd $SLURM_SUBMIT_DIR; source env.sh; run $A', "3"),
        ("D=$(dirname $0)\ncd sub; source $D/env.sh; run $A", "3"),
    ],
)
def test_a_file_is_sourced_from_the_folder_where_bash_looks_for_it(text, word):
    script = read_script(text, lambda path: "A=3")
    assert script.commands[-1][-1].text == word
    assert bool(script.notes) == (word == "$A")


@pytest.mark.parametrize("start", ['bash -c "{}"', 'eval "{}"', 'B="{}"\nsrun bash -c "$B"', "bash <<E\n{}\nE"])
def test_words_behind_a_line_break_of_a_variable_are_in_doubt_where_bash_ends_the_command(start):
    options = 'RANKS="--nodes $(n) --l \'a|{b\'\n --ranks 8\n"\nARGS="--a 1"\n'
    script = read_script(options + start.format("cd x && run $RANKS train.py $ARGS\nother $ARGS"))
    doubts = {word.text: word.doubt for command in script.commands[-2:-1] for word in command}
    doubt = "bash ends the command at a line break of RANKS before it"
    assert [text for text, found in doubts.items() if found == doubt] == ["--ranks", "8", "train.py", "--a", "1"]
    assert doubts["--l"] is doubts["a|{b"] is None
    assert [word.doubt for word in script.commands[-1]][-3:] == [None] * 3
    whole = read_script('S="cd x\nrun --a\nother"\nbash -c "set -e; $S"')
    assert [word.text for word in whole.commands[-2]] == ["run", "--a"]


@pytest.mark.parametrize("name", ["../env.sh", "./x/../../env.sh", "/shared/env.sh", "$(dirname $0)/../env.sh"])
def test_a_file_outside_the_folder_of_the_script_is_not_sourced(name):
    (note,) = read_script(f"source {name}", lambda path: "A=3").notes
    assert note.endswith("env.sh was not read; what it sets is missing.")


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ('B=8\ncat <<E > f.json\n{"batch": $B}\nE', {"f.json": '{"batch": 8}\n'}),
        ("cat > ./a//f <<'E'\n$B\nE", {"a/f": "$B\n"}),
        ("cat <<E > f.json\n$B\nE", {"f.json": None}),
        ("cat <<E | tee f.json\na\nE", {"f.json": None}),
        ("[ -f x ] || cat > f <<E\na\nE", {"f": None}),
        ("cat > f.json <<E\na\nE\npython make.py --to=f.json", {"f.json": None}),
        ("cat > f.json <<E\na\nE\npython train.py --deepspeed_config f.json", {"f.json": "a\n"}),
    ],
)
def test_a_file_has_the_text_of_its_here_document_where_nothing_else_may_write_it(text, files):
    found = read_script(text).files
    assert {path: file and file.text for path, file in found.items()} == files


@pytest.mark.parametrize("given", ["env A_B=1,2 nohup", "mpirun -x A_B=1,2", "srun --export=ALL,A_B=1,2", "A_B=1,2"])
def test_variables_that_the_command_gives_its_ranks_are_named_like_exported_ones(given):
    found = read_launch_script(f"{given} python pretrain_gpt.py --num-layers 2 --micro-batch-size 1")
    assert any(note.startswith("Exported variables that were not read: A_B.") for note in found.notes)


@pytest.mark.security("no_shell")
@given(st.text(alphabet="A=$({\"' `\\\n#})[]@1;|&<E", max_size=200) | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_no_text_breaks_the_reader(text):
    with suppress(InputError):
        read_script(text)
