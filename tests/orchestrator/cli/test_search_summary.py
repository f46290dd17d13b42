"""The upper limit that is printed before a search begins; after it the end of its finals, and that a table answered."""

from __future__ import annotations

import pytest
import yaml

from orchestrator.cli.search_summary import describe_upper_limit, launch_lines
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from tests.orchestrator.cli.parlay import parlay_here
from tests.orchestrator.cli.simulated import OK, write_simulated_search
from trials.files.folders import SearchFolder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["search.max_trials=1"], "1 trial: upper limit "),
        (["search.max_trials=2"], "2 trials: upper limit "),
        (["search.max_trials=1", "search.finalists=1", "search.finalist_repeats=1"], "1 trial and 1 repeat: upper "),
    ],
)
def test_the_upper_limit_counts_trials_and_repeats(tmp_path, changes, words):
    spec = load_search_file(write_simulated_search(tmp_path, OK, OK), changes)
    assert describe_upper_limit(spec, candidates_of(spec)).startswith(words)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            "until_decided",
            ["the finals ended after 1 of at most 2 rounds: one layout is clearly faster than every other"],
        ),
        ("fixed", []),
    ],
)
def test_the_summary_says_why_the_finals_ended(tmp_path, rule, told):
    path = write_simulated_search(tmp_path, {"step_time_s": "10.0"}, {"step_time_s": "20.0"})
    answer = parlay_here("run", path, "--set", "search.finalists=2", "--set", f"search.finals={rule}", cwd=tmp_path)
    lines = [line.removesuffix(" that was measured again") for line in answer.out.splitlines()]
    assert [line for line in lines if line.startswith("the finals")] == told


def test_of_a_replayed_table_nobody_says_that_parlay_ran_anything(tmp_path):
    replayed = "Replayed from table.csv. Parlay ran nothing in this search."
    path = write_simulated_search(tmp_path, {"step_time_s": "10.0"}, {"step_time_s": "20.0"})
    answer = parlay_here("run", path, cwd=tmp_path)
    lines = answer.out.splitlines()
    assert replayed in lines
    assert [line.split()[0] for line in lines if line.startswith(("launch:", "train:"))] == ["train:"]
    assert any(" simulated node-hours used" in line for line in lines)
    best = parlay_here("best", cwd=tmp_path).out
    assert replayed in best.splitlines()
    (folder,) = (tmp_path / "runs").glob("*/recipe")
    page, script = ((folder / name).read_text() for name in ("README.md", "launch.sh"))
    assert page.splitlines()[2] == replayed
    for false in ("Measured", "trained on", "Based on", "the measured program"):
        assert false not in page
    assert "Replayed value. " in page
    (line,) = (line for line in page.splitlines() if line.startswith("- `launch.sh`"))
    assert line.endswith("its ranks refuse the layout: Parlay's own trainer has no engine nanotron.")
    assert f"# {replayed}\n# This script is untried" in script
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert replayed in recipe["caveats"]
    assert {export["status"] for export in recipe["exports"]} == {"not_measured", "refused"}
    again = parlay_here("replay", folder, cwd=tmp_path)
    assert again.out.startswith("impossible: replayed ")
    assert replayed in again.out


def test_the_start_that_was_measured_comes_before_a_line_that_was_not_run(tmp_path):
    folder = SearchFolder(tmp_path)
    folder.recipe.mkdir()
    export = "{trainer: deepspeed, status: not_measured, unrun_start: deepspeed YOUR_SCRIPT}"
    (folder.recipe / "recipe.yaml").write_text(f"start: sbatch launch.sbatch\nexports: [{export}]")
    assert launch_lines(folder) == [
        f"launch:  cd {folder.recipe} && sbatch launch.sbatch (the measured program)",
        "train:   deepspeed YOUR_SCRIPT (beside recipe/; not run; not measured with DeepSpeed)",
    ]
