"""Tables at the end of a search and of a ledger's searches."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from dashboards.report.table import table
from dashboards.search_rows import format_age
from dashboards.terminal.event_lines import event_line
from dashboards.terminal.fitting_table import fitting_words
from dashboards.terminal.headline import headroom_lines
from dashboards.terminal.layout_table import MarkedTable, newest_rows, results_table
from dashboards.terminal.searches_table import searches_table
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import AXES, Layout
from tests.dashboards.compared import (
    BASELINE,
    SPEC,
    compared_search,
    repeated_search,
    shown,
    view_of,
)
from tests.dashboards.searches import SearchUnderTest
from tests.trials.analysis.test_verdict import told
from trials.trial import FailureReason

COLUMNS = ["trial", "layout", "tokens/s", "±", "%", "step", "s", "GiB", "state"]


def rows_of(search: SearchUnderTest) -> list[str]:
    return shown(results_table(view_of(search)))[1:]


def measured(layout: Layout, tokens_per_sec: float = 1000.0, **fields) -> SearchUnderTest:
    """Search of one layout."""
    search = SearchUnderTest({"name": "tiny"})
    search.measure(search.start(layout), tokens_per_sec, **fields)
    return search


def test_the_table_has_the_best_first_marked_and_what_failed_last_with_its_reason():
    search = compared_search()
    flagged = Layout(micro_batch_size=16, grad_accum_steps=1)
    search.measure(search.start(flagged), 9.0, ("extrapolated",))
    header, *rows = shown(results_table(view_of(search)))
    assert header.split() == COLUMNS
    marks = [["t0002", "*"], ["t0003", "="], ["t0001", "b"], ["t0005", "!"], ["t0004", "tp1"]]
    assert [row.split()[:2] for row in rows] == marks
    assert "  160,000  ±2 " in rows[0]
    assert "tp1 pp2 dp1 mb8 1f1b" in rows[-1]
    assert "deepspeed" in rows[-1], "a field without a column is shown where it differs"
    assert rows[-1].rstrip().endswith("OOM")


def test_real_tokens_stand_beside_all_where_some_are_padding():
    view = view_of(measured(BASELINE, 1000.0, real_tokens_per_sec=715.0, real_token_share=0.715))
    header, row, *_ = shown(results_table(view))
    assert "tokens/s real tokens/s" in header
    assert "1,000           715" in row
    names = [[each.name for each in table(each_view)["columns"]] for each_view in (view, view_of(measured(BASELINE)))]
    assert ["real tokens/s" in each for each in names] == [True, False]


def test_a_pruned_trial_shows_what_it_reaches_at_most():
    search = compared_search()
    search.prune(search.start(Layout(micro_batch_size=16, grad_accum_steps=1)), 90_000.0)
    said = event_line(search.events[-2], search.records[-2])
    assert said.endswith("t0005.a1 stopped early: 90,000 tokens/s")
    last = rows_of(search)[-1]
    assert "≤ 91,800" in last
    assert last.split()[-1] == "pruned"


def test_a_layout_is_one_row_over_all_its_runs_wherever_it_was_measured_again_and_failures_are_counted():
    rows = rows_of(repeated_search())
    assert [row.split()[0] for row in rows] == ["t0003", "t0002", "t0001", "t0004"], "by speed"
    assert " 152,000 " in rows[1]
    assert rows[1].rstrip().endswith("3 runs")
    assert rows[2].rstrip().endswith("1 of 2 runs")


def test_the_best_is_green_a_failure_red_and_a_repeat_dim_and_the_marks_that_are_used_are_explained():
    search = repeated_search()
    search.measure(search.start(Layout(micro_batch_size=16, grad_accum_steps=1)), 9.0, ("extrapolated",))
    view = view_of(search)
    table = MarkedTable(newest_rows(view, 20), view)
    assert table.legend == "* recommended so far   b baseline   r repeat   ! flagged, see below"
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, color_system="standard", width=120)
    console.print(table)
    styles = {row.split("t00")[1][:2]: row.split("t00")[0] for row in stream.getvalue().splitlines() if "t00" in row}
    assert (styles["02"], styles["04"], styles["05"], styles["01"]) == ("\x1b[1;32m", "\x1b[31m", "\x1b[2m", "")


@pytest.mark.parametrize(("low", "high", "words"), [(990.1, 1010.0, "±1"), (899.0, 1106.0, "-10/+11")])
def test_an_interval_that_is_all_but_symmetric_is_one_number(low, high, words):
    search = measured(BASELINE, 1000.0, tokens_per_sec_low=low, tokens_per_sec_high=high)
    assert f" {words} " in rows_of(search)[0]
    assert " 1,000 (" in event_line(search.events[-2], search.record)


NEEDED = {
    "recompute_layers": {"activation_checkpointing": "full"},
    "recompute_modules": {"activation_checkpointing": "selective"},
    "context_transport": {"context_parallel": 2},
    "quantized_weights": {"matmul_precision": "fp8_tensorwise"},
    "expert_dispatcher": {"expert_parallel": 2},
}
"""Values of other fields with which a field has an effect."""


WITHOUT_NAME = ("data_parallel", "grad_accum_steps", "bucket_mib", "settings")
"""Fields that do not vary by themselves: of one global batch the accumulation follows, and the others are compared
here or elsewhere."""


@pytest.mark.parametrize("field", [name for name in AXES if name not in WITHOUT_NAME])
def test_no_two_layouts_look_alike(field):
    """Layouts that differ in any field have different rows."""
    search, known = SearchUnderTest(), Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, zero_stage=1)
    known = replace(known, **NEEDED.get(field, {}))
    axis, value = AXES[field], getattr(known, field)
    other = 2 * (value or 1) if axis.is_number else next(word for word in axis.words or (False, True) if word != value)
    for layout in (known, replace(known, **{field: other}), replace(known, bucket_mib=25)):
        search.measure(search.start(layout), 1000.0)
    assert len({row[len("t0001 =") :] for row in rows_of(search)}) == 3


def test_no_line_is_wider_than_eighty_columns_without_a_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    search = SearchUnderTest()
    degrees = {"tensor_parallel": 1024, "pipeline_parallel": 128, "data_parallel": 2048, "grad_accum_steps": 1024}
    others = {"virtual_pipeline_stages": 2, "activation_checkpointing": "selective"}
    for engine in ("torch", "megatron-deepspeed"):
        search.measure(search.start(Layout(**degrees, **others, engine=engine)), 123_456_789.0)
    search.fail(search.start(Layout(precision="bf16")), FailureReason.CANCELLED_BY_SEARCH)
    rows = rows_of(search)
    assert max(len(row.rstrip()) for row in rows) <= 80
    assert sum("123,456,789" in row for row in rows) == 2


def test_columns_are_left_out_before_a_line_would_wrap(monkeypatch):
    table = results_table(view_of(compared_search()))
    headers = []
    for width in (80, 70, 62, 50):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = shown(table)
        headers.append(lines[0].split())
        assert max(len(line.rstrip()) for line in lines) <= width
        assert len(lines) == 5
    assert headers[0] == COLUMNS
    assert headers[-1] == ["trial", "layout", "tokens/s", "state"]
    assert [len(header) for header in headers] == sorted(map(len, headers), reverse=True)


def test_of_many_layouts_the_first_are_shown_and_the_baseline_and_how_many_are_left():
    search = SearchUnderTest(SPEC | {"baseline": Layout(micro_batch_size=16).to_json()})
    for number in range(30):
        layout = Layout(tensor_parallel=number + 1, micro_batch_size=16)
        search.measure(search.start(layout), 1000.0 + number)
    table = results_table(view_of(search), most=20)
    _, *rows = shown(table)
    assert (len(rows), table.num_more) == (20, 10)
    assert rows[-1].startswith("t0001 =b")


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_the_best_and_the_baseline_are_shown_in_their_order_at_whatever_place_they_are(most):
    """The faster layouts leave too little memory: the best is third."""
    spec = {"name": "tiny", "global_batch_size": 16, "cluster": Cluster(ACCELERATORS["cpu"], 1, 1).to_json()}
    asked = {"constraints": {"min_free_memory_gib": 4.0}, "measure": {"memory_limit_gib": 10.0}}
    search = SearchUnderTest(spec | asked | {"baseline": BASELINE.to_json()})
    search.measure(search.start(BASELINE), 50_000.0, peak_memory_gib=6.0)
    for size, gib in ((2, 9.0), (4, 9.0), (8, 6.0)):
        layout = Layout(micro_batch_size=size, grad_accum_steps=16 // size)
        search.measure(search.start(layout), 100_000.0 - 1000 * size, peak_memory_gib=gib)
    table = results_table(view_of(search), most)
    trials = [row.split()[0] for row in shown(table)[1:]]
    assert trials == [*["t0002", "t0003"][: max(0, most - 2)], "t0004", "t0001"]
    assert table.num_more == 4 - len(trials)


def test_a_layout_that_leaves_too_little_memory_is_said_to_and_is_not_the_best():
    spec = {"name": "tiny", "global_batch_size": 16, "cluster": Cluster(ACCELERATORS["cpu"], 1, 1).to_json()}
    asked = {"constraints": {"min_free_memory_gib": 4.0}, "measure": {"memory_limit_gib": 10.0}}
    search = SearchUnderTest(spec | asked)
    search.measure(search.start(BASELINE), 100_000.0, peak_memory_gib=9.0)
    assert "leaves 1 GiB free, constraints.min_free_memory_gib is 4" in event_line(search.events[-2], search.record)
    search.measure(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 80_000.0, peak_memory_gib=6.0)
    full, kept = rows_of(search)
    assert (kept.split()[:2], full.split()[:2]) == (["t0002", "*"], ["t0001", "tp1"])
    assert "too full" in full
    (line,) = headroom_lines(view_of(search).ranking)
    assert line == "! t0001 leaves less memory free than required: constraints.min_free_memory_gib is 4 GiB"
    assert headroom_lines(view_of(compared_search()).ranking) == []


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


def test_each_search_has_its_state_speed_and_age():
    ended = compared_search()
    ended.end()
    compared = ended.record
    empty = SearchUnderTest().record
    header, first, second = shown(searches_table([compared, empty], compared.created_at + 7200))
    names = ["search", "state", "layouts", "tokens/s", "\N{MULTIPLICATION SIGN}", "baseline", "node-hours", "age"]
    assert header.split() == names
    assert first.split()[:5] == [compared.search_id, "completed", "4", "160,000", "1.60x"]
    assert first.rstrip().endswith("2 h")
    assert "\N{EN DASH}" in second


def test_a_search_without_a_clear_winner_shows_no_speedup():
    tied = told("baseline 1000~, other 1280~", spec=SPEC)
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
