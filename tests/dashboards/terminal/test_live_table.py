"""Live view of a search in a terminal or a log file."""

from __future__ import annotations

import io

import pytest

from dashboards.terminal.live_table import LiveView
from dashboards.trial_text import describe_flag
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, BATCH, compared_search, plain_lines
from tests.dashboards.searches import SearchUnderTest, ended_search
from trials.analysis.ranking import Objective


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def drawn(search: SearchUnderTest, stream: io.StringIO, baseline: str | None = BASELINE.key) -> str:
    """The view of a search as it is now; on a terminal the table in place."""
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, baseline, stream) as view:
        view.begin(search.record)
        if stream.isatty() and view._live is not None:
            view._live.refresh()
    return stream.getvalue()


def test_flags_stand_in_the_line_of_a_measurement_and_are_explained_once_with_where_the_time_of_a_step_goes():
    search = SearchUnderTest()
    for flags in (("extrapolated",), ("time_limit", "extrapolated")):
        search.measure(search.start(Layout()), 1000.0, flags, time_s={"compute": 0.75, "bubble": 0.25})
    lines = plain_lines(search)
    first, second = (i for i, line in enumerate(lines) if " measured: " in line)
    assert lines[first].endswith("1 s a step, 1.5 GiB; flagged extrapolated")
    assert lines[first + 1] == "  step time: compute 75 %, bubble 25 %"
    assert lines[second].endswith("; flagged time_limit, extrapolated")
    for flag in ("extrapolated", "time_limit"):
        assert lines.count(f"  {describe_flag(flag)}") == 1


def test_below_the_table_stand_what_is_in_flight_the_answer_so_far_and_each_limit_as_time_passes(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    search = SearchUnderTest({"search": {"max_trials": 8, "max_wall_time": "3600s"}})
    search.measure(search.start(BASELINE), 100_000.0, ("suspect_node",))
    search.measure(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 150_000.0)
    search.start(Layout(micro_batch_size=2, grad_accum_steps=8))
    (attempt,) = search.record.in_flight
    now = attempt.started_at + 30
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, terminal, clock=lambda: now) as view:
        view.begin(search.record)
        view._live.refresh()
        text = terminal.getvalue()
        now += 60
        view._live.refresh()
    limits = ("2 of up to 8", " of 1:00:00")
    for words in ("t0003.a1 running for 0:30 on node1 node2", "1.50x", "! t0001 suspect_node: a slow device", *limits):
        assert words in text
    assert "t0003.a1 running for 1:30" in terminal.getvalue()


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines_with_no_word_broken(terminal, monkeypatch, kind):
    monkeypatch.setenv("TERM", kind)
    text = drawn(compared_search(), terminal)
    assert max(map(len, text.splitlines())) <= 80
    assert "1.60x faster than the baseline" in " ".join(text.split())


def test_a_table_that_does_not_fit_the_screen_keeps_the_best_and_the_newest(terminal, monkeypatch):
    monkeypatch.setenv("LINES", "12")
    search = SearchUnderTest()
    for size, rate in ((4, 9.0), *((2, 5.0),) * 12):
        search.measure(search.start(Layout(micro_batch_size=size, grad_accum_steps=BATCH // size)), rate)
    text = drawn(search, terminal, None)
    assert "t0001 *" in text
    assert "t0013" in text
    assert "t0004" not in text


def test_a_replayed_search_says_once_that_nothing_runs(terminal):
    said = "Replayed from a.csv. Parlay ran nothing in this search."
    recorded = SearchUnderTest({"launcher": {"kind": "simulated", "table": "/data/a.csv"}})
    recorded.start(Layout())
    lines = plain_lines(recorded)
    assert (lines[0], lines.count(said)) == (said, 1)
    assert said not in plain_lines(ended_search())
    assert said in drawn(recorded, terminal)


def test_a_small_terminal_has_every_word_of_the_remarks_and_the_last_line(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    search = SearchUnderTest({"search": {"max_trials": 30, "budget_node_hours": 4.0, "max_wall_time": "3600s"}})
    for flag in ("suspect_node", "extrapolated", "time_limit"):
        search.measure(search.start(Layout(micro_batch_size=8, grad_accum_steps=2)), 9.0, (flag,))
    for _ in range(12):
        search.start(Layout(micro_batch_size=4, grad_accum_steps=4))
    text = " ".join(drawn(search, terminal).split())
    assert describe_flag("suspect_node") in text
    assert "and 8 more in flight" in text
    assert "tiny-abcdef: 3 measured, 12 in flight" in text
    assert "node-hours used" not in text, "a bar shows them"
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
