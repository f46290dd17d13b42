"""Headline and sentence of a verdict, and the progress line."""

from __future__ import annotations

from dashboards.terminal.headline import best_layout_line, sentence
from dashboards.terminal.live_table import progress_line, results_table
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, compared_search, ranking_of, shown
from tests.dashboards.searches import SearchUnderTest
from trials.analysis.verdict import verdict_of


def headline(search, ranking, baseline_key):
    return best_layout_line(verdict_of(search, ranking, baseline_key))


def test_the_headline_compares_with_what_runs_today_and_names_ties_and_progress_counts_trials():
    search = compared_search().record
    words = headline(search, ranking_of(search), BASELINE.key)
    assert words.startswith("fastest so far: t0002, tp2 pp1 dp1 mb2, ")
    assert "160,000 (156,800–163,200) tokens/s" in words
    assert "1.60x faster than the baseline (1.54–1.67)" in words
    assert words.endswith("statistically tied with t0003")
    search = compared_search()
    search.start(Layout(micro_batch_size=16))
    line = "tiny-abcdef: 3 measured, 1 failed, 1 in flight"
    assert progress_line(search.record, has_node_hours=False) == line
    assert progress_line(search.record) == f"{line}, 1.000 node-hours used, 0.167 reserved"


def test_the_headline_says_of_a_layout_chosen_for_its_memory_why_and_how_much():
    search, layouts = SearchUnderTest(), (BASELINE, Layout(micro_batch_size=4, grad_accum_steps=4))
    for kind in ("search", "repeat", "repeat"):
        for layout, rate, peak_gib in zip(layouts, (100_000.0, 99_900.0), (3.0, 2.0), strict=True):
            search.measure(search.start(layout, kind), rate, peak_memory_gib=peak_gib)
    search.end()
    words = headline(search.record, ranking_of(search.record), BASELINE.key)
    assert words.startswith("recommended: t0002, ")
    assert "; no clear winner: 1.00x (0.93–1.08); " in words
    assert words.endswith("; t0001 is 0.1 % faster, within noise, but needs 3 GiB instead of 2")
    rows = shown(results_table(search.record, ranking_of(search.record), BASELINE.key))[1:]
    assert [row.split()[:2] for row in rows] == [["t0001", "=b"], ["t0002", "*"]]
    for kind in ("search", "repeat", "repeat"):
        third = Layout(micro_batch_size=2, grad_accum_steps=8)
        search.measure(search.start(third, kind), 99_800.0, peak_memory_gib=3.0)
    verdict = verdict_of(search.record, ranking_of(search.record), BASELINE.key)
    assert sentence(verdict).endswith("needs 3 GiB instead of 2. Statistically tied with t0002: t0007.")
