"""The tables of engines by axis in README.md and docs/trainers.md, and search_spaces/verified.csv."""

from __future__ import annotations

import csv

import pytest

from search_spaces.verification import TABLE
from tests.engine_table import Status, feature_status, pages, parsed_layouts, status, trained_cases, words


@pytest.mark.walks
@pytest.mark.parametrize(
    ("engine", "name", "value", "expected"),
    [
        ("torch", "pipeline_schedule", "gpipe", Status.RUN),
        ("torch", "pipeline_schedule", "zbv", Status.REFUSED),
        ("torchtitan", "attention_kernel", "flash", Status.OPTION),
        ("torchtitan", "tensor_parallel_overlap", True, Status.OPTION),
        ("accelerate", "tensor_parallel", 2, Status.REFUSED),
    ],
)
def test_a_value_was_run_or_is_by_option_only_or_is_refused(engine, name, value, expected):
    assert status(engine, name, value) is expected


@pytest.mark.walks
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_pages_say_what_rules_and_cases_say():
    assert feature_status("accelerate", "qkv_bias") is Status.RUN
    assert feature_status("torchtitan", "qkv_bias") is Status.REFUSED
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, "python -m tests.engine_table --write"


@pytest.mark.walks
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_declared_value_is_in_a_case():
    """More may be trained and parsed than is declared; `python -m tests.engine_table --write` adds it."""
    trained, parsed = [case.layout for case in trained_cases()], parsed_layouts()
    with TABLE.open(newline="") as file:
        declared = list(csv.DictReader(file))
    assert len(declared) > 100
    for row in declared:
        assert {*row["run"].split()} <= words(trained, row["engine"], row["axis"]), row
        assert {*row["parsed"].split()} <= words(parsed, row["engine"], row["axis"]), row
