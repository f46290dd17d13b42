"""Names in a column that is too narrow: what tells them apart stays."""

from __future__ import annotations

from rich.cells import cell_len

from dashboards.terminal.fitting_words import fitting_words


def test_what_all_rows_have_and_then_what_follows_from_the_other_words_is_left_out():
    rows = [("tp8", "dp16", "mb4", "ck-full", ""), ("tp8", "dp16", "mb4", "", "sp1"), ("tp8", "dp16", "mb4", "", "")]
    assert fitting_words(rows, 19) == ["tp8 dp16 ck-full …", "tp8 dp16 sp1 …", "tp8 dp16 …"]
    assert fitting_words(rows, 9) == ["ck-full …", "sp1 …", "…"]
    rows = [("tp1", "dp8", "mb4", "gpipe"), ("tp2", "dp4", "mb4", "gpipe"), ("tp2", "dp4", "mb2", "1f1b")]
    assert fitting_words(rows, 14) == ["tp1 dp8 mb4 …", "tp2 dp4 mb4 …", "tp2 dp4 mb2 …"]
    assert fitting_words(rows, 9) == ["tp1 mb4 …", "tp2 mb4 …", "tp2 mb2 …"]


def test_no_width_is_too_small_and_wide_characters_count_twice():
    rows = [("tp1", "名前=値値値値値値"), ("tp2", "")]
    for width in (1, 2, 5, 12, 40):
        assert max(map(cell_len, fitting_words(rows, width))) <= width
    assert fitting_words([], 10) == []
