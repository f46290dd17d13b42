"""Planted slowdowns and counts of the replay benchmark."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from benchmarks.replays import LOOP, slowed_copy, summaries
from trials.train.measurement import loop


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Part of a recipe that the slower copy changes."""
    (tmp_path / "recipe" / LOOP).parent.mkdir(parents=True)
    (tmp_path / "recipe" / LOOP).write_text(Path(loop.__file__).read_text())
    return tmp_path / "recipe"


def test_the_slower_copy_waits_once_in_a_step_before_its_clock_is_read(recipe: Path, tmp_path: Path):
    lines = (slowed_copy(recipe, tmp_path / "slower", 0.15) / LOOP).read_text().splitlines()
    planted = [number for number, line in enumerate(lines) if "time.sleep(" in line]
    assert len(planted) == 1
    assert lines[planted[0]].strip() == "time.sleep(0.15 * (time.perf_counter() - started))"
    assert lines[planted[0] + 1].strip() == "step_time_s = time.perf_counter() - started"
    ast.parse("\n".join(lines))
    assert "time.sleep(" not in (recipe / LOOP).read_text()


def test_a_program_that_times_its_steps_otherwise_is_not_made_slower_by_chance(recipe: Path, tmp_path: Path):
    (recipe / LOOP).write_text("step_time_s = 1.0\n")
    with pytest.raises(ValueError, match="does not end a step"):
        slowed_copy(recipe, tmp_path / "slower", 0.15)


def test_verdicts_are_counted_apart_for_each_slow_down():
    lines = [
        {"slower": 0.0, "verdict": "reproduced", "ratio": 1.01, "detail": None},
        {"slower": 0.15, "verdict": "slower", "ratio": 0.87, "detail": None},
        {"slower": 0.0, "verdict": "inconclusive", "ratio": 0.94, "detail": None},
        {"slower": 0.15, "verdict": "impossible", "ratio": None, "detail": "2 nodes"},
        {"slower": 0.0, "verdict": "reproduced", "ratio": 1.0, "detail": None},
        {"slower": 0.15, "verdict": "inconclusive", "ratio": 0.2, "detail": "node_failure: n1 is gone"},
    ]
    same, slower = summaries(lines)
    assert same["verdicts"] == {"reproduced": 2, "inconclusive": 1}
    assert (same["replays"], same["ratio_min"], same["ratio_median"], same["ratio_max"]) == (3, 0.94, 1.0, 1.01)
    assert slower["verdicts"] == {"slower": 1, "impossible": 1, "inconclusive": 1}
    assert (slower["ratio_min"], slower["ratio_max"]) == (0.87, 0.87)
