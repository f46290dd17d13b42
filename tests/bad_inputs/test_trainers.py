"""Lines 38 to 40: a trainer that cannot be started, or that gets settings other than those searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bad_inputs.cli import Cli

AXES = "--tp {tensor_parallel} --pp {pipeline_parallel} --mbs {micro_batch_size} --batch {global_batch_size}"


def command(template: str) -> str:
    """`--set` options for a trainer with this command line."""
    return f"trainer={{kind: command, patterns: megatron-lm, template: {json.dumps(template)}}}"


def program(folder: Path, content: bytes, mode: int = 0o755) -> Path:
    path = folder / "train"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.bad_input(38)
@pytest.mark.parametrize("script", ["gone.py", "folder"])
def test_a_training_script_that_is_no_file_is_refused(cli: Cli, script):
    (cli.folder / "folder").mkdir()
    problem = cli.refused_run(f"trainer={{kind: megatron-lm, script: {script}}}").about("trainer.script")
    assert problem["value"] == str(cli.folder / script)


@pytest.mark.bad_input(38)
@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (b"#!/bin/sh\r\necho\r\n", 0o755, "Windows line ends"),
        (b"echo\n", 0o755, "without an interpreter line"),
        (b"", 0o755, "without an interpreter line"),
        (b"#!/bin/sh\necho\n", 0o644, "not found from"),
    ],
)
def test_a_program_that_cannot_be_started_is_refused(cli: Cli, content, mode, words):
    path = program(cli.folder, content, mode)
    problem = cli.refused_run(command(f"{path} {AXES}")).about("trainer.template")
    assert (problem["value"], words in problem["message"]) == (str(path), True)


@pytest.mark.bad_input(38)
@pytest.mark.parametrize("word", ["/bin/sh", "sh", "{python}"])
def test_a_program_that_can_be_started_is_not_refused(cli: Cli, word):
    """Only the search's length is refused."""
    refusal = cli.refused_run(command(f"{word} {AXES}"), "search.budget_node_hours=0.000001")
    assert [p["key"] for p in refusal.problems] == ["search.budget_node_hours"]


@pytest.mark.bad_input(39)
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{python} x.py {tensor}", "has the placeholder {tensor}"),
        ("{python} x.py --pp {pipeline_parallel} --mbs {micro_batch_size}", "has no {tensor_parallel}"),
        ("{python} x.py {", "outside of a placeholder"),
        ("{python} 'x.py", "cannot be split into words"),
        ("  ", "is empty"),
    ],
)
def test_a_template_that_is_none_is_refused(cli: Cli, template, words):
    problem = cli.refused_run(command(template)).about("trainer.template")
    assert words in problem["message"]


@pytest.mark.bad_input(40)
@pytest.mark.parametrize("argument", ["--tensor-model-parallel-size", "--micro-batch-size=3", "--train-iters"])
def test_an_argument_that_contradicts_the_search_is_refused(cli: Cli, argument):
    (cli.folder / "x.py").write_text("")
    trainer = f"trainer={{kind: megatron-lm, script: x.py, arguments: [--lr, '0.1', {argument}]}}"
    assert cli.refused_run(trainer).about("trainer.arguments[2]")["value"] == argument


@pytest.mark.bad_input(54)
def test_a_megatron_core_of_another_version_is_refused(cli: Cli):
    """tests/orchestrator/preflight/test_engine_packages.py has the other cases."""
    python = cli.folder / "python"
    python.write_text('#!/bin/sh\necho \'{"megatron-core": "0.15.3"}\'\ncase $2 in *find_spec*) echo torch;; esac\n')
    python.chmod(0o755)
    sets = ("--set", "space.engine=megatron-core", "--set", f"trainer.python={python}")
    cli.write()
    for verb in ("run", "selftest", "calibrate"):
        problem = cli.refused(verb, "search.yaml", *sets).about("trainer.python")
        assert "megatron-core 0.15.3 is installed" in problem["message"]
        assert "verified with megatron-core>=0.16.1,<0.17" in problem["rule"]
