"""Findings on ranks that are forked after their imports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.diagnostics.doctor import warm_start
from orchestrator.diagnostics.doctor.finding import Level
from orchestrator.diagnostics.doctor.warm_start import check_warm_start, probe_preload, warm_start_findings
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.trials.train.parity import needs_megatron, needs_torchtitan


def test_each_engine_has_a_finding_and_a_failed_check_its_reason(tmp_path: Path) -> None:
    spec = load_search_file(write_search(tmp_path, TINY_SEARCH), ["space.engine=[torch, deepspeed]"])
    reasons = {"torch/cpu": None, "deepspeed/cpu": "an import has started 1 threads: jemalloc_bg_thd"}
    bad, good = warm_start_findings(spec, lambda python, preload: reasons[preload])
    assert (good.level, good.message) == (Level.OK, "ranks of engine torch can be forked after their imports")
    assert bad.level is Level.NOTE
    assert bad.message.endswith("jemalloc_bg_thd")


@pytest.mark.parametrize("change", ["measure.warm_start=false", "launcher.kind=slurm"])
def test_ranks_that_start_plain_are_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    monkeypatch.setattr(warm_start, "probe_preload", None)
    assert list(check_warm_start(load_search_file(write_search(tmp_path, TINY_SEARCH), [change]))) == []


@pytest.mark.slow
def test_an_interpreter_without_torch_cannot_import_it(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    assert "No module named 'torch'" in str(probe_preload(str(tmp_path / "python"), "torch/cpu"))


def test_an_interpreter_that_answers_nothing_is_a_reason() -> None:
    assert "the check did not end" in str(probe_preload("/bin/true", "torch/cpu"))


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "preload",
    [
        "torch/cpu",
        "deepspeed/cpu",
        "torch/gpu",
        pytest.param("megatron-core/gpu", marks=[needs_megatron, pytest.mark.walks]),
        pytest.param("torchtitan/cpu", marks=[needs_torchtitan, pytest.mark.walks]),
    ],
)
def test_engines_can_be_forked_here(monkeypatch: pytest.MonkeyPatch, preload: str) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # for a GPU: OpenBLAS starts a thread for each core
    assert probe_preload(sys.executable, preload) is None
