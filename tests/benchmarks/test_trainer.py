"""The trainer benchmark runs everything that it compares; its timings are not tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITH_A_SMALL_MODEL = "from benchmarks import trainer; trainer.STEPS_MODEL = trainer.STARTUP_MODEL; trainer.main()"


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_each_engine_is_compared_with_plain_pytorch_in_its_steps_and_its_start(tmp_path):
    command = [sys.executable, "-c", WITH_A_SMALL_MODEL, "--rounds", "1", "--json"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True, timeout=270)
    ratios = json.loads(done.stdout.splitlines()[-1])
    steps = ["step_torch", "step_deepspeed", "step_deepspeed_over_torch"]
    assert list(ratios) == [*steps, "startup_torch", "startup_deepspeed"]
    assert all(ratio > 0 for ratio in ratios.values())
    assert not list(tmp_path.rglob("rendezvous*"))
