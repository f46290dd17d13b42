"""Copies of a checkout, for tests that run the real pretrain_gpt.py, and the options of a training on a CPU."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

DOWNLOADS = "PARLAY_DOWNLOADS"
VERSIONS = ("core_v0.16.1", "main")
ARGUMENTS = (
    *("--transformer-impl", "local", "--distributed-backend", "gloo", "--use-cpu-initialization"),
    # The first needs Apex's kernel, the second a reduction of NCCL.
    *("--no-gradient-accumulation-fusion", "--no-gradient-reduce-div-fusion"),
)
"""Options of a training on a CPU."""
START = "tests.trials.external.megatron_on_cpu.start"
"""Module that an interpreter imports first (patched_interpreter.py)."""


def checkout_of(version: str, folder: Path) -> Path:
    """A copy of Megatron-LM at this tag or branch, in the folder; skips the test where there is no checkout."""
    source = Path(os.environ.get(DOWNLOADS, "no downloads"), "Megatron-LM")
    if not (source / ".git").exists():
        pytest.skip(f"no downloads: {DOWNLOADS} names no folder with a checkout of Megatron-LM")
    copy = folder / version
    copy.mkdir()
    wanted = [version, "--", "megatron", ":(top,glob)*.py"]
    archive = subprocess.run(["git", "-C", source, "archive", *wanted], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", copy], input=archive, check=True)
    return copy
