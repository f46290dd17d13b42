"""Error of predicting a table's rows from each other."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.table_regularity import median_error, summaries

pytestmark = pytest.mark.slow


def test_what_follows_from_the_numbers_is_predicted_and_chance_is_not():
    numbers = np.arange(60.0)[:, None]
    noise = np.random.default_rng(0).normal(0, 1, 60)
    assert median_error(numbers, 1 + np.floor(numbers[:, 0] / 20), seeds=1) < 0.01
    assert median_error(numbers, noise, seeds=1) > 0.3


def line(source: str, nodes: int, error: float) -> dict:
    return {"source": source, "num_nodes": nodes, "error_median": error, "error_median_with_model": error / 2}


def test_problems_are_summed_up_by_source_and_size():
    found = list(summaries([line("a", 1, 0.1), line("a", 2, 0.2), line("a", 4, 0.4), line("b", 1, 0.3)]))
    assert [(each["source"], each["nodes"], each["problems"]) for each in found] == [
        ("a", "one", 1),
        ("a", "many", 2),
        ("b", "one", 1),
    ]
    assert [each["error_median"] for each in found] == [0.1, pytest.approx(0.3), 0.3]
    assert found[1]["error_median_with_model"] == pytest.approx(0.15)
