"""search_spaces/verified.csv against the cases of the tests that it is derived from."""

from __future__ import annotations

import csv

import pytest

from search_spaces.verification import TABLE
from tests.verified_values import parsed_layouts, trained_cases, words

pytestmark = [pytest.mark.slow, pytest.mark.walks, pytest.mark.timeout(300)]


def test_every_declared_value_is_in_a_case():
    """More may be trained and parsed than is declared; `python -m tests.verified_values --write` adds it."""
    trained, parsed = [case.layout for case in trained_cases()], parsed_layouts()
    with TABLE.open(newline="") as file:
        declared = list(csv.DictReader(file))
    assert len(declared) > 100
    for row in declared:
        assert {*row["run"].split()} <= words(trained, row["engine"], row["axis"]), row
        assert {*row["parsed"].split()} <= words(parsed, row["engine"], row["axis"]), row
