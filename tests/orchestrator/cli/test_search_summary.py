"""The answer of a search in words: its upper limit, several goals, why its finals ended, that a table answered."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import yaml

from orchestrator.cli.main import main as run
from orchestrator.cli.plan_answer import describe_upper_limit
from orchestrator.cli.search_summary import launch_lines
from orchestrator.planning.candidates import candidates_of
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import render_table
from tests.orchestrator.cli.simulated import TABLE_SEARCH, write_simulated_search
from tests.orchestrator.past_searches import measured, past, spec_in, write_ledger
from tests.search_spaces.example_tables import only
from trials.files.folders import SearchFolder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["search.max_trials=1", "search.finalists=0"], "1 trial: upper limit "),
        (["search.max_trials=1", "search.finalists=1", "search.finalist_repeats=1"], "1 trial and 1 repeat: upper "),
        (["search.max_trials=9", "search.finalists=3", "cluster.num_nodes=2", "space.num_nodes=2"], " and 6 repeats: "),
        (
            ["search.max_trials=9", "search.finalists=3", "cluster.num_nodes=2", "space.num_nodes=[1, 2]"],
            " and 8 repeats: ",
        ),
    ],
)
def test_the_upper_limit_counts_trials_and_repeats_and_a_finalist_more_for_each_number_of_nodes(
    tmp_path, changes, words
):
    spec = spec_in(tmp_path, *changes)
    assert words in describe_upper_limit(spec, candidates_of(spec))


ON_ONE = Layout(tensor_parallel=2, micro_batch_size=4, grad_accum_steps=2)
ON_TWO = Layout(num_nodes=2, tensor_parallel=2, data_parallel=2, micro_batch_size=4, grad_accum_steps=1)
TRADE = "t0001 on 1 node has 62 % of its tokens/s at 81 % of its node-hours a token"


@pytest.mark.slow
def test_several_numbers_of_nodes_are_all_answered_and_the_best_says_what_fewer_give(tmp_path, parlay, capfd):
    spec = spec_in(tmp_path, "cluster.num_nodes=2", "space.num_nodes=[1, 2]")
    trials = [
        measured(name, layout, tokens_per_sec=speed, tokens_per_sec_low=0.99 * speed, tokens_per_sec_high=1.01 * speed)
        for name, layout, speed in (("t0001", ON_ONE, 186.0), ("t0002", ON_TWO, 300.0))
    ]
    record = past(spec, *trials)
    record = replace(record, spec=record.spec | {"folder": str(tmp_path / record.search_id)})
    search = ("past-aaaaaa", "--ledger", write_ledger(f"sqlite:///{tmp_path / 'ledger.db'}", record))
    _, best, _ = parlay("best", *search)
    assert [(point["trial"], point["num_nodes"]) for point in best["pareto"]] == [("t0002", 2), ("t0001", 1)]
    assert best["pareto"][1]["values"] == {"tokens_per_sec": 186.0}
    assert best["rationale"].endswith(TRADE)
    for verb in ("best", "status"):
        assert run([verb, *search]) == 0
        assert f"\n{TRADE}\n" in capfd.readouterr().out


def test_of_a_replayed_table_nobody_says_that_parlay_ran_anything(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    replayed = "Replayed from table.csv. Parlay ran nothing in this search."
    assert run(["run", str(write_simulated_search(tmp_path, {"step_time_s": "10.0"}, {"step_time_s": "20.0"}))]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert replayed in lines
    assert [line.split()[0] for line in lines if line.startswith(("launch the ", "train with "))] == ["train"]
    assert any(" simulated node-hours used" in line for line in lines)
    (folder,) = (tmp_path / "runs").glob("*/recipe")
    assert (folder / "README.md").read_text().splitlines()[2] == replayed
    for page in (folder / "README.md", folder.parent / "report.html"):
        assert "Replayed value." in page.read_text()
        assert not re.search(r"Based on \d+ run", page.read_text())
    assert f"# {replayed}\n# This script is untried" in (folder / "launch.sh").read_text()
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert replayed in recipe["caveats"]
    assert {export["status"] for export in recipe["exports"]} == {"not_measured", "refused"}
    for words in (["best"], ["replay", str(folder)]):
        run(words)
        assert replayed in capfd.readouterr().out


def test_the_start_that_was_measured_comes_before_a_line_that_was_not_run(tmp_path):
    folder = SearchFolder(tmp_path)
    folder.recipe.mkdir()
    export = "{trainer: deepspeed, status: not_measured, unrun_start: deepspeed YOUR_SCRIPT}"
    (folder.recipe / "recipe.yaml").write_text(f"start: sbatch launch.sbatch\nexports: [{export}]")
    told, measured, of_unrun, unrun = launch_lines(folder)
    assert (told, measured) == ("launch the measured program:", f"    cd {folder.recipe} && sbatch launch.sbatch")
    assert "(not run; not measured with it)" in of_unrun
    assert unrun == "    deepspeed YOUR_SCRIPT"


@pytest.mark.slow
def test_what_a_search_learns_from_is_told_at_its_start_and_lies_in_its_folder(tmp_path, parlay):
    others = [{"num_layers": "32", "micro_batch_size": str(2**n), "grad_accum_steps": str(128 >> n)} for n in range(4)]
    (tmp_path / "past.csv").write_text(render_table(only(*others)))
    text = TABLE_SEARCH.replace("sampler: grid", "sampler: cost_model, warm_start: past.csv")
    path = write_simulated_search(tmp_path, {"step_time_s": "4.5"}, text=text)
    for changes, is_told in (((), True), (("--set", "search.warm_start=none"), False)):
        code, answer, err = parlay("run", path, *changes)
        assert code == 0, err
        assert ("warm start: 4 trials of a table: ultrascale-playbook" in err) is is_told
        assert SearchFolder(tmp_path / "runs" / answer["search_id"]).warm_start.exists() is is_told
