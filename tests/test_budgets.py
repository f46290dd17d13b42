"""The house stays within budgets.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping

import pytest

from tests.hops import hops
from tests.house import BEFORE, BUDGETS, PLANNER, budgeted, fallen_percent, house, lowered

HOPS = {"hops.search_file", "hops.throughput", "hops.job_id"}
PARTS = {PLANNER + part for part in ("enumerate", "columns", "plan", "plan_json")}


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
    numbers = house()
    assert over(budgeted(numbers), budgets) == []
    assert budgets.keys() - budgeted(numbers).keys() == HOPS | PARTS
    lines, tokens = (fallen_percent(numbers, name) for name in BEFORE)
    assert lines <= 0 or tokens >= 0.8 * lines, "lines became denser"


def test_a_number_above_its_budget_or_without_one_is_told():
    assert over({"a": 2, "b": 1, "c": 1}, {"a": 1, "c": 1}) == ["a: 2 over 1", "b: 1 over 0"]


def test_lowering_raises_no_budget_and_keeps_its_reason():
    speed = f'"{PLANNER}plan" = 100\n'
    text = '# why\n"a" = 5 # how\n"b" = 1\n"gone" = 3\n' + speed
    assert lowered(text, {"a": 4, "b": 2, "new": 7}) == '# why\n"a" = 4 # how\n"b" = 1\n' + speed + '"new" = 7\n'


@pytest.mark.processes
@pytest.mark.walks
@pytest.mark.timeout(300)
def test_hops_are_within_their_budgets(budgets):
    assert over(budgeted(hops()), budgets) == []
