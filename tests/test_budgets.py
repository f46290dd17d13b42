"""The house stays within budgets.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest

from tests.hops import hops
from tests.house import BUDGETS, budgeted, house


@pytest.fixture(scope="module")
def budgets() -> dict[str, int]:
    return tomllib.loads(BUDGETS.read_text(encoding="utf-8"))


def over(numbers: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    return [
        f"{name}: {number} over {budgets.get(name, 0)}"
        for name, number in numbers.items()
        if number > budgets.get(name, 0)
    ]


@pytest.mark.slow
def test_lines_tokens_imports_and_words_are_within_their_budgets(budgets):
    assert over(budgeted(house()), budgets) == []


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.timeout(300)
def test_hops_are_within_their_budgets(budgets):
    assert over(budgeted(hops()), budgets) == []
