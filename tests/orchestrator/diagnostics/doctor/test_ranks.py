"""Findings about the ranks' interpreter, torch and the last selftest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.ranks import (
    InterpreterInfo,
    check_ranks,
    interpreter_findings,
    probe_interpreter,
    selftest_finding,
    selftest_findings,
)
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search

WELL = InterpreterInfo("3.11.7", "2.6.0+cu124", "0.19.8", ("NVIDIA A100-SXM4-80GB",) * 4)
PASSED = {
    "at": "2026-11-20T10:00:00Z",
    "passed": True,
    "failed": [],
    "fingerprint": {"torch": "2.6.0"},
    "detail": None,
}


def spec_of(folder: Path, *changes: str) -> SearchSpec:
    return load_search_file(write_search(folder, TINY_SEARCH), changes)


def faults(findings) -> list[tuple[str, Level]]:
    return [(f.name, f.level) for f in findings if f.level is not Level.OK]


@pytest.mark.slow
def test_an_interpreter_tells_what_it_has(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    found = probe_interpreter(str(tmp_path / "python"))
    assert isinstance(found, InterpreterInfo)
    assert found.python == sys.version.split()[0]
    assert found.torch is None
    assert "No module named 'torch'" in (found.torch_error or "")


@pytest.mark.slow
def test_a_python_is_asked_with_no_option_that_the_oldest_does_not_know(tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit 2\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    assert isinstance(probe_interpreter(str(tmp_path / "python")), InterpreterInfo)


@pytest.mark.slow
def test_what_ranks_do_not_see_is_not_counted_as_theirs(tmp_path, monkeypatch):
    for place in ("on_our_path", "in_our_folder"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "torch.py").write_text("__version__ = '2.6'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on_our_path"))
    monkeypatch.chdir(tmp_path / "in_our_folder")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    found = probe_interpreter("../python")
    assert isinstance(found, InterpreterInfo)
    assert found.torch is None


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/such/python", "not an executable"),
        ("/bin/true", "Python program"),
        ("""echo '{"python": "3.11.7", "torch": "2.6.0"}'""", "it answers without gpus"),
        ("echo []", "it answers without python, torch, gpus"),
    ],
)
def test_what_is_no_interpreter_is_an_error(tmp_path, python, words):
    if python.startswith("echo"):
        (tmp_path / "python").write_text(f"#!/bin/sh\n{python}\n")
        (tmp_path / "python").chmod(0o755)
        python = str(tmp_path / "python")
    fault = probe_interpreter(python)
    assert isinstance(fault, Finding)
    assert (fault.level, fault.name) == (Level.ERROR, "ranks_python")
    assert words in fault.message
    assert "trainer.python" in (fault.fix or "")


@pytest.mark.parametrize(
    ("found", "changes", "expected"),
    [
        (WELL, (), []),
        (InterpreterInfo("3.9.18", "2.6.0"), (), [("ranks_python", Level.ERROR)]),
        (InterpreterInfo("3.10.14", "2.6.0", "0.19.8"), (), []),
        (InterpreterInfo("3.11.7", torch_error="ImportError: libcudart"), (), [("torch", Level.ERROR)]),
        (InterpreterInfo("3.11.7", "2.5.1"), (), [("torch", Level.ERROR)]),
        (InterpreterInfo("3.11.7", "2.6.0"), ("space.engine=[deepspeed, torch]",), [("deepspeed", Level.ERROR)]),
        (InterpreterInfo("3.11.7", "2.6.0"), ("space.engine=torch",), []),
        (WELL, ("cluster.accelerator=a100-80gb",), []),
        (WELL, ("cluster.accelerator=a100-80gb", "cluster.gpus_per_node=8"), [("gpus", Level.ERROR)]),
        (InterpreterInfo("3.11.7"), ("trainer={kind: megatron-lm, script: train.py}", "space.engine=megatron-lm"), []),
    ],
)
def test_what_the_ranks_would_miss_is_an_error(tmp_path, found, changes, expected):
    (tmp_path / "train.py").touch()
    assert faults(interpreter_findings(found, spec_of(tmp_path, "space.engine=torch", *changes))) == expected


@pytest.mark.parametrize(
    ("accelerator", "tests", "torch", "level", "words"),
    [
        ("a100-80gb", {}, None, Level.WARNING, "unverified"),
        ("cpu", {}, None, Level.NOTE, "no selftest"),
        ("cpu", {"cpu": PASSED}, "2.6.0", Level.OK, "2026-11-20"),
        ("cpu", {"cpu": PASSED}, None, Level.OK, "torch 2.6.0"),
        ("cpu", {"cpu": PASSED}, "2.7.1", Level.WARNING, "with torch 2.6.0, ranks have torch 2.7.1 now"),
        ("cpu", {"cpu": PASSED | {"passed": False, "failed": ["hang"]}}, "2.6.0", Level.WARNING, "failed: hang"),
        ("cpu", {"cpu": PASSED | {"passed": False, "detail": "3 of 9 cases were run"}}, None, Level.WARNING, "3 of 9"),
        ("a100-80gb", {"cpu": PASSED}, None, Level.WARNING, "no selftest has run on a100-80gb"),
    ],
)
def test_the_last_selftest_is_told_and_what_changed_since(accelerator, tests, torch, level, words):
    finding = selftest_finding(accelerator, tests, torch)
    assert (finding.name, finding.level) == ("selftest", level)
    assert words in finding.message


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"selftests": {"cpu": {}}}', '{"selftests": []}'])
def test_a_damaged_record_of_selftests_is_a_finding(tmp_path, damage):
    (tmp_path / "selftest.json").write_text(damage)
    [finding] = selftest_findings(spec_of(tmp_path, "launcher.kind=slurm"), tmp_path, None)
    assert (finding.name, finding.level) == ("selftest", Level.WARNING)
    assert "selftest.json is damaged" in finding.message


def test_of_other_machines_only_a_job_can_tell(tmp_path):
    spec = spec_of(tmp_path, "launcher.kind=slurm")

    alone = [(f.name, f.level) for f in check_ranks(spec, tmp_path, submits=False)]
    assert alone == [("ranks_python", Level.NOTE), ("selftest", Level.NOTE)]
    assert list(check_ranks(spec, tmp_path, submits=True)) == []
