"""Findings about the ranks' interpreter: torch, engines, forks after imports, and the last selftest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.engine_packages import node_package_findings, package_findings
from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.ranks import (
    InterpreterInfo,
    check_ranks,
    interpreter_findings,
    probe_interpreter,
    selftest_finding,
)
from orchestrator.diagnostics.doctor.warm_start import probe_preload, warm_start_findings
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.orchestrator.diagnostics.doctor.test_nodes import one_changed, probe
from tests.trials.train.parity import needs_megatron, needs_torchtitan

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


def program(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def faults(findings) -> list[tuple[str, Level]]:
    return [(f.name, f.level) for f in findings if f.level is not Level.OK]


@pytest.mark.slow
def test_an_interpreter_tells_what_its_ranks_would_see(tmp_path, monkeypatch):
    """Torch on our path and in our folder is not theirs. The oldest Python knows no option but -c."""
    for place in ("on_our_path", "in_our_folder"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "torch.py").write_text("__version__ = '2.6'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "on_our_path"))
    monkeypatch.chdir(tmp_path / "in_our_folder")
    program(tmp_path / "python", f'[ "$1" = -c ] || exit 2\nexec {sys.executable} -S "$@"')
    found = probe_interpreter("../python")
    assert isinstance(found, InterpreterInfo)
    assert (found.python, found.torch) == (sys.version.split()[0], None)
    assert "No module named 'torch'" in (found.torch_error or "")


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/no/such/python", "not an executable"),
        ("/bin/true", "Python program"),
        ("echo []", "it answers without python, torch, gpus"),
    ],
)
def test_what_is_no_interpreter_is_an_error(tmp_path, python, words):
    if python.startswith("echo"):
        python = program(tmp_path / "python", python)
    fault = probe_interpreter(python)
    assert isinstance(fault, Finding)
    assert (fault.level, fault.name) == (Level.ERROR, "ranks_python")
    assert words in fault.message
    assert "trainer.python" in (fault.fix or "")


@pytest.mark.parametrize(
    ("found", "changes", "expected"),
    [
        (WELL, (), []),
        (InterpreterInfo("3.11.7", torch_error="ImportError: libcudart"), (), [("torch", Level.ERROR)]),
        (InterpreterInfo("3.11.7", "2.5.1"), (), [("torch", Level.ERROR)]),
        (InterpreterInfo("3.11.7", "2.6.0"), ("space.engine=[deepspeed, torch]",), [("deepspeed", Level.ERROR)]),
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
        ("cpu", {"cpu": PASSED}, "2.7.1", Level.WARNING, "with torch 2.6.0, ranks have torch 2.7.1 now"),
        ("cpu", {"cpu": PASSED | {"passed": False, "failed": ["hang"]}}, "2.6.0", Level.WARNING, "failed: hang"),
    ],
)
def test_the_last_selftest_is_told_and_what_changed_since(accelerator, tests, torch, level, words):
    finding = selftest_finding(accelerator, tests, torch)
    assert (finding.name, finding.level) == ("selftest", level)
    assert words in finding.message


def test_of_other_machines_only_a_job_can_tell(tmp_path):
    spec = spec_of(tmp_path, "launcher.kind=slurm")

    alone = [(f.name, f.level) for f in check_ranks(spec, tmp_path, submits=False)]
    assert alone == [("ranks_python", Level.NOTE), ("selftest", Level.NOTE)]
    assert list(check_ranks(spec, tmp_path, submits=True)) == []


CORE, ENGINE = "megatron_core", "transformer_engine"
PACKAGES = {"megatron-core": "0.16.1", "transformer-engine": "2.9.0", "flash-attn": None, "apex": None}
GPU, FLASH = (
    "cluster.accelerator=a100-80gb",
    "space={attention_kernel: [math, flash], engine: megatron-core, precision: bf16}",
)


def engine_spec(folder: Path, *changes: str) -> SearchSpec:
    return spec_of(folder, "space.engine=megatron-core", "baseline={}", *changes)


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("core", "engine", "changes", "expected"),
    [
        ("0.16.1", "1.0", (), [(CORE, Level.OK)]),  # a CPU takes none of its layers
        (None, None, (), [(CORE, Level.ERROR)]),
        ("0.15.3", None, (), [(CORE, Level.ERROR)]),
        ("0.16.1", "2.10.0", (GPU,), [(CORE, Level.OK), (ENGINE, Level.OK)]),
        ("0.16.1", "2.12.0", (GPU,), [(CORE, Level.OK), (ENGINE, Level.WARNING)]),
        ("0.16.1", None, (GPU,), [(CORE, Level.OK), (ENGINE, Level.NOTE)]),
        ("0.16.1", None, (GPU, FLASH), [(ENGINE, Level.ERROR), (CORE, Level.OK)]),
    ],
)
def test_what_is_installed_is_compared_with_what_was_verified(tmp_path, core, engine, changes, expected):
    installed = {**PACKAGES, "megatron-core": core, "transformer-engine": engine}
    found = list(package_findings(installed, "/opt/python", engine_spec(tmp_path, *changes)))
    assert [(finding.name, finding.level) for finding in found] == expected
    assert all("megatron-core" in finding.message for finding in found)


@pytest.mark.bad_input(54)
def test_the_packages_of_the_nodes_are_compared_too(tmp_path):
    spec, well = engine_spec(tmp_path, GPU), probe(packages=PACKAGES)
    assert [finding.level for finding in node_package_findings(well.ranks, spec)] == [Level.OK, Level.OK]
    [old, _] = node_package_findings(probe(packages={**PACKAGES, "megatron-core": "0.15.3"}).ranks, spec)
    assert (old.level, "0.15.3 is installed, but engine megatron-core was verified with" in old.message) == (
        Level.ERROR,
        True,
    )
    [differs] = node_package_findings(
        one_changed(well, 5, packages={**PACKAGES, "megatron-core": "0.16.2"}).ranks, spec
    )
    assert (differs.name, differs.level) == (CORE, Level.ERROR)
    assert "n1 has megatron-core 0.16.1" in differs.message
    assert "n2 has megatron-core 0.16.2" in differs.message
    [lacks] = node_package_findings(one_changed(well, 5, packages=dict.fromkeys(PACKAGES)).ranks, spec)
    assert lacks.message.endswith("n2 has none of them")


def test_each_engine_has_a_finding_and_a_failed_check_its_reason(tmp_path: Path) -> None:
    spec = load_search_file(write_search(tmp_path, TINY_SEARCH), ["space.engine=[torch, deepspeed]"])
    reasons = {"torch/cpu": None, "deepspeed/cpu": "an import has started 1 threads: jemalloc_bg_thd"}
    bad, good = warm_start_findings(spec, lambda python, preload: reasons[preload])
    assert (good.level, good.message) == (Level.OK, "ranks of engine torch can be forked after their imports")
    assert bad.level is Level.NOTE
    assert bad.message.endswith("jemalloc_bg_thd")


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "preload",
    [
        "torch/cpu",
        pytest.param("deepspeed/cpu", marks=pytest.mark.walks),
        pytest.param("torch/gpu", marks=pytest.mark.walks),
        pytest.param("megatron-core/gpu", marks=[needs_megatron, pytest.mark.walks]),
        pytest.param("torchtitan/cpu", marks=[needs_torchtitan, pytest.mark.walks]),
    ],
)
def test_engines_can_be_forked_here(monkeypatch: pytest.MonkeyPatch, preload: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # for a GPU: OpenBLAS starts a thread for each core
    assert probe_preload(sys.executable, preload) is None
