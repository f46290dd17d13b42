"""Table of a ledger's searches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dashboards.terminal.searches_table import format_age, searches_table
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, BATCH, compared_search, shown
from tests.dashboards.searches import SearchUnderTest


def test_each_search_has_its_state_speed_and_age():
    ended, spec = compared_search(), {"baseline": BASELINE.to_json(), "global_batch_size": BATCH}
    ended.end()
    compared = replace(ended.record, spec=spec)
    empty = SearchUnderTest().record
    header, first, second = shown(searches_table([compared, empty], compared.created_at + 7200))
    names = ["search", "state", "layouts", "tokens/s", "\N{MULTIPLICATION SIGN}", "baseline", "node-hours", "age"]
    assert header.split() == names
    assert first.split()[:5] == [compared.search_id, "completed", "4", "160,000", "1.60x"]
    assert first.rstrip().endswith("2 h")
    assert "\N{EN DASH}" in second


def test_a_search_without_a_clear_winner_shows_no_speedup():
    tied = SearchUnderTest({"name": "tiny", "baseline": BASELINE.to_json(), "global_batch_size": BATCH})
    for layout, speed in ((BASELINE, 1000.0), (Layout(micro_batch_size=2, grad_accum_steps=8), 1280.0)):
        tied.measure(tied.start(layout), speed, tokens_per_sec_low=0.7 * speed, tokens_per_sec_high=1.3 * speed)
    _, row = shown(searches_table([tied.record], tied.record.created_at))
    assert "no clear winner" in row
    assert "1.28" not in row


def test_long_ids_are_cut_so_that_they_differ_and_no_line_wraps(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    ids = [f"a-search-with-a-name-of-forty-one-letters-{end}" for end in ("kqw4n2", "z7bd3x")]
    _, *rows = shown(searches_table([replace(compared_search().record, search_id=each) for each in ids], 0.0))
    assert [row.split()[0][-6:] for row in rows] == ["kqw4n2", "z7bd3x"]
    assert max(len(row.rstrip()) for row in rows) <= 60


@pytest.mark.parametrize(("seconds", "text"), [(-3, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "2 h"), (90000, "1 d")])
def test_an_age_is_in_its_largest_unit(seconds, text):
    assert format_age(seconds) == text
