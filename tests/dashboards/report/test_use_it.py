"""Use of a recipe as the report shows it."""

from __future__ import annotations

import pytest

from dashboards.report.use_it import LaunchCommand, use_it
from trials.files.folders import SearchFolder

RECIPE = """\
layout: {engine: nanotron}
start: sbatch launch.sbatch
exports:
- {trainer: deepspeed, status: not_measured, unrun_start: deepspeed YOUR_SCRIPT}
- {trainer: torchtitan, status: refused, unrun_start: null}
- {trainer: nanotron, status: not_measured, unrun_start: torchrun run_train.py, files: [nanotron.yaml]}
"""


def folder_with(path, text: str) -> SearchFolder:
    (path / "recipe").mkdir()
    (path / "recipe" / "recipe.yaml").write_text(text)
    return SearchFolder(path)


def test_the_command_of_the_layouts_engine_comes_first_and_before_it_what_measured_the_layout(tmp_path):
    use = use_it(folder_with(tmp_path, RECIPE))
    assert use.recipe == str(tmp_path / "recipe")
    assert use.start == f"cd {tmp_path}/recipe && sbatch launch.sbatch"
    assert use.replay == f"parlay replay {tmp_path.name}"
    assert use.launches == (
        LaunchCommand("nanotron", "torchrun run_train.py", False, ("nanotron.yaml",)),
        LaunchCommand("DeepSpeed", "deepspeed YOUR_SCRIPT", False),
    )
    measured = RECIPE.replace("deepspeed, status: not_", "deepspeed, status: ")
    (tmp_path / "recipe" / "recipe.yaml").write_text(measured)
    assert use_it(SearchFolder(tmp_path)).launches[0] == LaunchCommand("DeepSpeed", "deepspeed YOUR_SCRIPT", True)


@pytest.mark.parametrize(
    "text", ["", "a: [", "layout: 3\nexports: {a: 1}", "exports: [1, {unrun_start: 2}]\nstart: [1]"]
)
def test_a_damaged_recipe_has_no_commands(tmp_path, text):
    use = use_it(folder_with(tmp_path, text))
    assert use is None or (use.start, use.launches) == (None, ())
    assert use_it(SearchFolder(tmp_path / "none")) is None
