"""Names, datasets, metrics and times of runs, without MLflow."""

from __future__ import annotations

import pytest

from dashboards.mlflow.naming import run_names
from dashboards.mlflow.points import search_points, trial_points
from dashboards.mlflow.runs import child_view, dataset_of, parent_view
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, BATCH, compared_search
from tests.dashboards.searches import SearchUnderTest

SIMULATED = {"kind": "simulated", "table": "/data/measured.csv"}
SPEC = {"baseline": BASELINE.to_json(), "global_batch_size": BATCH}


def test_a_run_is_named_by_the_axes_that_vary_up_to_its_trial():
    search = SearchUnderTest()
    for changes in ({}, {"zero_stage": 1}, {}, {"attention_kernel": "flash"}):
        search.start(Layout(data_parallel=2, **changes))
    layouts = [name.split(" mb1")[1] for name in run_names(search.record.trials).values()]
    assert layouts == ["", " z1", " z0", " z0 flash"]
    assert run_names(search.record.trials[:2]).items() <= run_names(search.record.trials).items()


def test_a_dataset_is_named_by_its_file_and_a_simulated_search_names_its_table():
    data = {"kind": "tokens", "path": "/data/c4.bin"}
    found = dataset_of(SearchUnderTest({"name": "x", "trainer": {"data": data}}).record)
    assert (found.name, found.source_type, found.context) == ("c4.bin", "local", "training")
    found = dataset_of(SearchUnderTest({"name": "x", "launcher": SIMULATED}).record)
    assert (found.name, found.source_type, found.context) == ("measured.csv", "local", "measured table")


def test_a_trial_has_its_speedup_and_every_objective_of_the_search():
    search = SearchUnderTest(SPEC | {"objectives": ["tokens_per_sec", "node_hours_per_billion_tokens"]})
    for layout in (trial.layout for trial in compared_search().record.trials[:2]):
        search.measure(search.start(layout), 100_000.0 * (1 + len(search.record.trials) / 2))
    record = search.record
    points = [{p.key: p.value for p in trial_points(record, trial)} for trial in record.trials]
    assert [found["speedup"] for found in points] == pytest.approx([1.0, 4 / 3], rel=1e-4)
    assert points[0]["node_hours_per_billion_tokens"] == pytest.approx(1e9 / 3600 / 150_000, rel=1e-4)
    best = {p.key: p.value for p in search_points(record) if p.step == 2}
    assert best["best_tokens_per_sec"] == pytest.approx(200_000)
    assert best["best_node_hours_per_billion_tokens"] == pytest.approx(1e9 / 3600 / 200_000, rel=1e-4)


def test_nothing_of_a_simulated_search_is_in_the_future():
    search = SearchUnderTest({"name": "x", "launcher": {"kind": "simulated"}})
    search.measure(search.start(BASELINE), 1000.0)
    search.end()
    record = search.record
    parent, child = parent_view(record), child_view(record, record.trials[0])
    points = (*search_points(record), *trial_points(record, record.trials[0]))
    times = (parent.start_time_ms, parent.end_time_ms, child.start_time_ms, child.end_time_ms)
    assert max(*times, *(p.time_ms for p in points)) <= 1000 * record.created_at
    assert parent.tags["parlay.simulated"] == "true"
