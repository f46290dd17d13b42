"""Predicted side of the gallery: recipes are their searches' baselines, and the page has the current numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import gallery_table
from benchmarks.gallery import filled
from benchmarks.gallery_table import CHOICE, SYSTEMS, Line, gallery_lines, page_parts, readable
from tests.orchestrator.config.test_ready_made_searches import PUBLISHED, TODAY, ready_made

PAGE = Path(gallery_table.__file__).parents[1] / "docs/gallery.md"

pytestmark = pytest.mark.timeout(120)  # a plan for each recipe


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return list(gallery_lines())


def of(lines: list[Line], system: str) -> list[Line]:
    return [line for line in lines if line["system"] == system]


@pytest.mark.slow
def test_each_system_of_the_gallery_has_its_recipes_and_a_choice(lines):
    assert set(SYSTEMS) == {*PUBLISHED, *TODAY} - {"frontier-175b-deephyper"}
    for system, recipes in SYSTEMS.items():
        assert [line["recipe"] for line in of(lines, system)] == [*(each.words for each in recipes), CHOICE]
        assert of(lines, system)[-1]["place"] == 1
        for recipe, line in zip(recipes, of(lines, system), strict=False):
            baseline = ready_made(system, *recipe.settings).baseline
            assert baseline is not None
            assert line["layout_key"] == baseline.key


def test_a_prediction_is_compared_with_what_was_published(lines):
    step = of(lines, "mt-nlg-530b")[0]
    assert step["off"] == {"step_time_s": pytest.approx(step["step_time_s"] / 60.1 - 1)}
    rate = of(lines, "asc22-yuan")[0]
    assert rate["off"] == {"tokens_per_sec": pytest.approx(rate["tokens_per_sec"] / 4100 - 1)}
    share = of(lines, "frontier-175b")[0]
    assert share["off"] == {name: pytest.approx(share[name] / 0.3614 - 1) for name in ("mfu", "hfu")}
    assert [line["off"] for line in of(lines, "zero-mini")] == [{}] * 6


def test_the_five_runs_of_the_zero_project_are_told_apart(lines):
    keys = [line["layout_key"] for line in of(lines, "zero-mini")[:5]]
    assert len(set(keys)) == 5
    peaks = [line["peak_memory_gib"] for line in of(lines, "zero-mini")[:5]]
    assert peaks[4] == min(peaks)


def test_the_page_holds_what_the_models_say_now(lines):
    """Written anew by `python -m benchmarks.gallery_table --page docs/gallery.md`."""
    page, parts = PAGE.read_text(), page_parts(lines)
    assert all(f"<!-- {name} -->" in page for name in parts)
    assert filled(page, parts) == page


def test_every_mark_of_the_page_is_one_that_somebody_fills(lines):
    twins = {"twin", "runs"}
    marks = set(re.findall(r"<!-- (\w+) ([\w-]+) -->", PAGE.read_text()))
    assert {" ".join(mark) for mark in marks if mark[0] not in twins} == set(page_parts(lines))


def test_a_line_of_the_terminal_tells_both_numbers(lines):
    told = readable(of(lines, "mt-nlg-530b")[0])
    assert told.startswith("mt-nlg-530b: 280 nodes: published 60.1 s a step; predicted ")
    assert readable(of(lines, "zero-mini")[0]).startswith("zero-mini: ZeRO 0: no speed published; predicted ")
