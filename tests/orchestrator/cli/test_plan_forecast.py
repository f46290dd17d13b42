"""`parlay plan --from SEARCH`."""

from __future__ import annotations

import pytest

from tests.orchestrator.cli.simulated import write_simulated_search


@pytest.mark.slow
def test_a_search_is_forecast_at_twice_four_and_eight_times_its_nodes(tmp_path, parlay):
    rows = ({"step_time_s": step_time_s} for step_time_s in ("4.5", "3.5", "5.5"))
    search_id = parlay("run", write_simulated_search(tmp_path, *rows))[1]["search_id"]
    code, answer, err = parlay("plan", "--from", search_id[:7])
    assert code == 0, err
    assert (answer["search_id"], answer["table"], answer["trials"]) == (search_id, None, 3)
    assert (answer["base"]["num_nodes"], answer["base"]["step_time_s"]) == (1, 3.5)
    cells = [(found["scaling"], found["num_nodes"], found["global_batch_size"]) for found in answer["forecasts"]]
    assert cells[:3] == [("weak", nodes, 256 * nodes) for nodes in (2, 4, 8)]
    assert cells[3:] == [("strong", nodes, 256) for nodes in (2, 4, 8)]
    for found in answer["forecasts"]:
        assert found["step_time_low_s"] < found["step_time_s"] < found["step_time_high_s"]


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ((), "SEARCH.YAML"),
        (("search.yaml", "--nodes", "2"), "--nodes"),
        (("search.yaml", "--nodes", ""), "--nodes"),
        (("search.yaml", "--from", "past"), "--from"),
        (("--from", "past", "--sampler", ""), "--sampler"),
        (("--from", "past", "--set", "work_dir=here"), "--set"),
        (("--from", "past", "--rejected"), "--rejected"),
        (("--nodes", "2", "--scaling", "up"), "--scaling"),
        (
            (
                "--nodes",
                "0",
            ),
            "--nodes",
        ),
    ],
)
def test_a_plan_is_of_a_file_or_from_trials(parlay, words, key):
    code, answer, _ = parlay("plan", *words)
    assert (code, answer["error"]["key"]) == (2, key)


def test_a_table_that_is_missing_is_told_by_the_option_that_names_it(parlay):
    code, answer, _ = parlay("plan", "--from", "nope.csv")
    error = answer["error"]
    assert (code, error["key"], error["file"]) == (2, "--from", "nope.csv")
    assert error["fix"] == "check the path, relative to the working directory, and its permissions"
