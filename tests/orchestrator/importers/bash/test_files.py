from __future__ import annotations

import pytest

from orchestrator.importers.bash.script import read_script


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
        ("cat <<E | tee f\na\nE", {"f": "a\n"}),
        ("tee f g <<E >/dev/null\na\nE", {"f": "a\n", "g": "a\n", "/dev/null": "a\n"}),
        ("cat <<E | sed s/a/b/ > f\na\nE", {"f": None}),
        ("cat <<E | sed s/a/b/ | tee f\na\nE", {"f": None}),
        ("N=\ncat <<E | $N > f\na\nE", {"f": None}),
        ("echo a > f\nprintf '%s\\n' b >> f", {"f": "a\nb\n"}),
        ("echo a >> f", {"f": None}),
        ("echo a > f\ncat f f > g", {"f": "a\n", "g": "a\na\n"}),
        ("echo a > f\ncp -f f g\nmv g h", {"f": "a\n", "g": None, "g/f": "a\n", "h": "a\n", "h/g": "a\n"}),
        ("cp /x/f f", {"f": None, "f/f": None}),
        ("echo a > f\nsed -i 's/a/b/' f", {"f": None, "s/a/b": None}),
        ("echo a > f\nsed 's/a/b/' f > g", {"f": "a\n", "g": None}),
        ("echo a > f\nrm -f f", {"f": None}),
        ("jq .x f.json > g.json", {"g.json": None}),
        ("envsubst < f.json > g.json", {"g.json": None}),
        ("{ echo a; echo b; } > f", {"f": None}),
        ("mkdir -p d && cat > d/f <<E\na\nE", {"d/f": "a\n"}),
        ("[ -f f ] || echo a > f", {"f": None}),
        ("[ 1 = 2 ] && echo a > f", {}),
        ('python - <<E\nopen("f.json", "w")\nE', {"f.json": None}),
        ("python make.py --to=x/f.json", {"x/f.json": None}),
        ("echo a > f.json\npython train.py --deepspeed_config f.json", {"f.json": "a\n"}),
        ("echo a > f\nchmod +x f\ngrep a f", {"f": "a\n"}),
        ("echo a > f\nsudo sed -i s/a/b/ f", {"f": None, "s/a/b": None}),
        ("echo a > f\npatch f < x", {"f": None}),
        ("echo a > f\n./make f --b", {"f": None}),
        ("echo a > f\npython make.py --to=f", {"f": None}),
        ("echo -e a > f", {"f": None}),
        ("(echo a > f)\ntrue && echo b > g\nbash -c 'echo c > h'", {"f": "a\n", "g": "b\n", "h": "c\n"}),
        ("make() { cat > $1 <<E\n$2 ${3} \\$2 $# $9\nE\n}\nmake f b c", {"f": "b c $2 3 \n"}),
        ("cat > f <<E\n$1\nE", {"f": None}),
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


def test_a_command_finds_the_files_as_they_are_when_it_runs():
    script = read_script("echo a > f\nrun 1\necho b > f\nrun 2")
    found = [script.files_before(command)["f"] for command in script.commands if command[0].text == "run"]
    assert [file and file.text for file in found] == ["a\n", "b\n"]


@pytest.mark.parametrize(
    "start",
    [
        "bash run.sh 8",
        "bash -x ./run.sh 8",
        "srun -n 2 sh run.sh 8",
        "./run.sh 8",
        "sbatch run.sh 8",
        "srun ./run.sh 8",
    ],
)
def test_a_script_that_the_script_writes_is_read_where_it_is_started(start):
    script = read_script(f"A=2\ncat > run.sh <<E\n#!/bin/bash\nrun --a $A --b \\$1 \\$A\nE\nchmod +x run.sh\n{start}")
    assert [word.text for word in script.commands[-1]] == ["run", "--a", "2", "--b", "8", "$A"]


def test_a_written_file_that_is_sourced_is_read_in_place_of_the_one_beside_the_script():
    script = read_script("echo A=1 > env.sh\n. ./env.sh\nrun $A", {"./env.sh": "A=2"}.__getitem__)
    assert [word.text for word in script.commands[-1]] == ["run", "1"]
    script = read_script("make > env.sh\n. ./env.sh\nrun $A", {"./env.sh": "A=2"}.__getitem__)
    assert script.notes == ("./env.sh was not read; what it sets is missing.",)


def test_a_here_document_is_read_by_its_step_and_a_script_that_starts_itself_ends():
    script = read_script("srun --ntasks=2 bash <<E\nrun --a\nE")
    assert [word.text for word in script.commands[-1]] == ["run", "--a"]
    read_script("echo bash run.sh > run.sh\nbash run.sh")
