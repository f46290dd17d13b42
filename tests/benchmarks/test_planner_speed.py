"""The planner takes no longer than at 33a1b12, whose layouts had half as many fields."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks.planner_speed import lines_beside
from tests.house import BUDGETS, PLANNER
from tests.sources import ROOT

BEFORE = "33a1b12"


@pytest.mark.nightly
@pytest.mark.processes
@pytest.mark.timeout(1200)
def test_no_part_of_a_plan_takes_longer_than_before(tmp_path: Path):
    git = ["git", "-C", str(ROOT)]
    if subprocess.run([*git, "cat-file", "-e", f"{BEFORE}^{{commit}}"], capture_output=True).returncode:
        pytest.skip(f"this copy of the project has no commit {BEFORE}")
    archive = subprocess.run([*git, "archive", BEFORE], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tmp_path)], input=archive, check=True)
    percent = {PLANNER + line["what"]: line["percent"] for line in lines_beside(tmp_path, repeats=3)}
    budgets = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    most = {name: number for name, number in budgets.items() if name.startswith(PLANNER)}
    assert {name: percent[name] for name in most if percent[name] > most[name]} == {}
