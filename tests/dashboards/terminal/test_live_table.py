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


def test_flags_stand_in_the_line_of_a_measurement_and_are_explained_once():
    search = SearchUnderTest()
    for flags in (("extrapolated",), ("time_limit", "extrapolated")):
        search.measure(search.start(Layout()), 1000.0, flags)
    lines = plain_lines(search)
    first, second = (i for i, line in enumerate(lines) if " measured: " in line)
    assert lines[first].endswith("1 s a step, 1.5 GiB; flagged extrapolated")
    assert lines[first + 1].startswith("  extrapolated: step time extrapolated from ")
    assert lines[second].endswith("; flagged time_limit, extrapolated")
    assert lines[second + 1].startswith("  time_limit: ")
    assert sum("extrapolated: " in line for line in lines) == 1


def test_where_the_time_of_a_step_goes_stands_below_its_measurement():
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 1000.0, ("time_limit",), time_s={"compute": 0.75, "bubble": 0.25})
    lines = plain_lines(search)
    assert lines[-2:] == ["  step time: compute 75 %, bubble 25 %", f"  {describe_flag('time_limit')}"]


def test_a_log_file_gets_no_terminal_codes():
    assert "\x1b" not in "\n".join(plain_lines(ended_search()))


def test_a_terminal_gets_a_table_in_place_of_lines(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream, search = Terminal(), compared_search()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        for record, event in zip(search.records, search.events, strict=True):
            view.update(record, event)
        view._live.refresh()
    assert "t0002 *" in stream.getvalue()
    assert "proposed" not in stream.getvalue()


def test_below_the_table_in_place_stands_what_its_flags_mean(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream, search = Terminal(), compared_search()
    search.measure(search.start(Layout(micro_batch_size=8, grad_accum_steps=2)), 9.0, ("suspect_node",))
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.update(search.record, search.events[-1])
        view._live.refresh()
    assert "! t0005 suspect_node: a slow device" in stream.getvalue()


def test_below_the_table_stand_what_is_in_flight_the_answer_so_far_and_each_limit_as_time_passes(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    search = SearchUnderTest({"search": {"max_trials": 8, "max_wall_time": "3600s"}})
    search.measure(search.start(BASELINE), 100_000.0)
    search.measure(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 150_000.0)
    search.start(Layout(micro_batch_size=2, grad_accum_steps=8))
    (attempt,) = search.record.in_flight
    now, stream = attempt.started_at + 30, Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream, clock=lambda: now) as view:
        view.begin(search.record)
        view._live.refresh()
        drawn = stream.getvalue()
        now += 60
        view._live.refresh()
    assert "t0003.a1 running for 0:30 on node1 node2" in drawn
    assert "1.50x faster than the baseline" in drawn
    assert "2 of up to 8" in drawn
    assert " of 1:00:00" in drawn
    assert "t0003.a1 running for 1:30" in stream.getvalue()


def test_a_log_file_that_begins_in_the_middle_says_first_how_far_the_search_is():
    search, stream = compared_search(), io.StringIO()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.begin(search.record)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("tiny-abcdef: 3 measured, 1 failed, 1.000 node-hours used")
    assert "1.60x faster than the baseline" in second


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, kind):
    monkeypatch.setenv("TERM", kind)
    stream = Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        search = SearchUnderTest()
        view.update(search.records[0], search.events[0])
    assert "search tiny-abcdef created" in stream.getvalue()


def test_a_terminal_that_cannot_move_its_cursor_has_no_word_broken(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream, search = Terminal(), compared_search()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.begin(search.record)
    assert max(map(len, stream.getvalue().splitlines())) <= 80
    assert "1.60x faster than the baseline" in " ".join(stream.getvalue().split())


def test_a_table_that_does_not_fit_the_screen_keeps_the_best_and_the_newest(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("LINES", "12")
    search = SearchUnderTest()
    for size, rate in ((4, 9.0), *((2, 5.0),) * 12):
        search.measure(search.start(Layout(micro_batch_size=size, grad_accum_steps=BATCH // size)), rate)
    stream = Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        view.update(search.records[-1], search.events[-1])
        view._live.refresh()
    assert "t0001 *" in stream.getvalue()
    assert "t0013" in stream.getvalue()
    assert "t0004" not in stream.getvalue()


def test_a_replayed_search_says_once_that_nothing_runs():
    said = "Replayed from a.csv. Parlay ran nothing in this search."
    recorded = SearchUnderTest({"launcher": {"kind": "simulated", "table": "/data/a.csv"}})
    recorded.start(Layout())
    lines = plain_lines(recorded)
    assert lines[0] == said
    assert lines.count(said) == 1
    assert said not in plain_lines(ended_search())


def test_the_live_table_of_a_replayed_search_says_that_nothing_runs(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    search, stream = SearchUnderTest({"launcher": {"kind": "simulated", "table": "/data/a.csv"}}), Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.begin(search.record)
        view._live.refresh()
    assert "Replayed from a.csv. Parlay ran nothing in this search." in stream.getvalue()


def test_a_small_terminal_has_every_word_of_the_remarks_and_the_last_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    search = SearchUnderTest({"search": {"max_trials": 30, "budget_node_hours": 4.0, "max_wall_time": "3600s"}})
    for flag in ("suspect_node", "extrapolated", "time_limit"):
        search.measure(search.start(Layout(micro_batch_size=8, grad_accum_steps=2)), 9.0, (flag,))
    for _ in range(12):
        search.start(Layout(micro_batch_size=4, grad_accum_steps=4))
    stream = Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.update(search.record, search.events[-1])
        view._live.refresh()
    drawn = " ".join(stream.getvalue().split())
    assert describe_flag("suspect_node") in drawn
    assert "and 8 more in flight" in drawn
    assert "tiny-abcdef: 3 measured, 12 in flight" in drawn
    assert "node-hours used" not in drawn, "a bar shows them"
    assert "\N{HORIZONTAL ELLIPSIS}" not in drawn
