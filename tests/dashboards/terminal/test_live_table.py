"""Live view of a search in a terminal or a log file: its table, its headline and the lines of events."""

from __future__ import annotations

import io
import re

import pytest

from dashboards.terminal.event_lines import event_line
from dashboards.terminal.headline import best_layout_line, sentence
from dashboards.terminal.layout_table import results_table
from dashboards.terminal.live_table import LiveView, progress_line
from dashboards.trial_text import describe_flag
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import BASELINE, BATCH, SPEC, compared_search, plain_lines, shown, view_of
from tests.dashboards.searches import SearchUnderTest, ended_search
from trials.ledger.events import Event, EventKind
from trials.trial import FailureReason


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def drawn(search: SearchUnderTest, stream: io.StringIO) -> str:
    """The view of a search as it is now; on a terminal the table in place."""
    with LiveView(stream) as view:
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
    search = SearchUnderTest(SPEC | {"search": {"max_trials": 8, "max_wall_time": "3600s"}})
    search.measure(search.start(BASELINE), 100_000.0, ("suspect_node",))
    search.measure(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 150_000.0)
    search.start(Layout(micro_batch_size=2, grad_accum_steps=8))
    (attempt,) = search.record.in_flight
    now = attempt.started_at + 30
    with LiveView(terminal, clock=lambda: now) as view:
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
    text = drawn(search, terminal)
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


def test_the_headline_compares_with_what_runs_today_and_names_ties_and_progress_counts_trials():
    words = best_layout_line(view_of(compared_search()).verdict)
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
    search, layouts = SearchUnderTest(SPEC), (BASELINE, Layout(micro_batch_size=4, grad_accum_steps=4))
    for kind in ("search", "repeat", "repeat"):
        for layout, rate, peak_gib in zip(layouts, (100_000.0, 99_900.0), (3.0, 2.0), strict=True):
            search.measure(search.start(layout, kind), rate, peak_memory_gib=peak_gib)
    search.end()
    words = best_layout_line(view_of(search).verdict)
    assert words.startswith("recommended: t0002, ")
    assert "; no clear winner: 1.00x (0.93–1.08); " in words
    assert words.endswith("; t0001 is 0.1 % faster, within noise, but needs 3 GiB instead of 2")
    rows = shown(results_table(view_of(search)))[1:]
    assert [row.split()[:2] for row in rows] == [["t0001", "=b"], ["t0002", "*"]]
    for kind in ("search", "repeat", "repeat"):
        third = Layout(micro_batch_size=2, grad_accum_steps=8)
        search.measure(search.start(third, kind), 99_800.0, peak_memory_gib=3.0)
    assert sentence(view_of(search).verdict).endswith("needs 3 GiB instead of 2. Statistically tied with t0002: t0007.")


def test_every_event_that_matters_is_one_line_without_terminal_codes():
    lines = plain_lines(ended_search())
    words = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]
    assert words[:5] == [
        "search tiny-abcdef created",
        "search running",
        "t0001 proposed: tp1 pp1 dp1 mb1",
        "t0001.a1 queued as job-t0001-a1",
        "t0001.a1 running on node1 node2",
    ]
    assert "t0001.a1 measured: 1,000 (980–1,020) tokens/s, 1 s a step, 1.5 GiB" in words
    assert "t0002.a1 failed, node failure: it broke" in words
    assert words[-2:] == ["t0002 leads so far", "search completed (reached the limit of search.max_trials)"]
    assert "\x1b" not in "".join(lines)


def ended_line(reason: FailureReason, excerpt: str, limit_gib: float | None = None, **outcome: object) -> str:
    """Line of an attempt that ended so."""
    search = SearchUnderTest({"measure": {"memory_limit_gib": limit_gib}})
    search.fail(search.start(Layout()), reason, excerpt, outcome=outcome or None)
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    return event_line(event, search.record).partition(" t0001.a1 ")[2]


_ON_A_GPU = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a capacity of 79 GiB"
_ON_A_CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    " tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)"
)
_IN_BUILD = {"rank": 3, "phase": "build"}
_HANG = "no progress for 300 s; the rank is at\n  File x, line 3\n    work.wait()\n"


@pytest.mark.bad_input(50)
@pytest.mark.parametrize(
    ("reason", "excerpt", "limit_gib", "outcome", "line"),
    [
        # Of a problem the first line is shown, of a traceback or a log the last.
        ("invalid_layout", "pp: is 3\n  rule: it divides\n  fix: 2 or 4", None, {}, "refused by the engine: pp: is 3"),
        ("script_error", "Traceback (most recent call last):\n  File x\nValueError: no", None, {}, ": ValueError: no"),
        ("gpu_oom", _ON_A_GPU, None, _IN_BUILD, "rank 3 ran out of memory in phase build, asking for 2.50 GiB more"),
        ("gpu_oom", _ON_A_CPU, 0.25, _IN_BUILD, "64 MiB more; its limit is 0.25 GiB (measure.memory_limit_gib)"),
        ("hang", _HANG, None, {"rank": 1, "phase": "warmup"}, "rank 1 made no progress for 300 s in phase warmup"),
        ("cancelled_by_user", "", None, {}, "cancelled by the user"),
        ("script_error", "bad \x1b[2Jname\u202e\x07", None, {}, r"bad \x1b[2Jname\u202e\x07"),
    ],
    ids=["rule", "traceback", "gpu", "cpu", "hang", "cancelled", "control"],
)
def test_the_end_of_an_attempt_is_told_by_its_cause(reason, excerpt, limit_gib, outcome, line):
    assert ended_line(FailureReason(reason), excerpt, limit_gib, **outcome).endswith(line)


T1 = {"trial": "t0001", "attempt": "a1"}
_FAILED = {"state": "failed", "end_reason": "script_error", "detail": "Traceback\n  File x\nImportError: no module"}
_INTENT = {"pilot": "p0001", "num_nodes": 4, "reserved_s": 1800.0}
_PILOT = {"pilot": "p0001", "job_id": "4711", "node_hours": 0.25, "billed_hours": None}


def test_what_happens_beside_is_one_remark():
    search = SearchUnderTest()
    search.start(Layout())
    for kind, data, line in (
        (EventKind.ATTEMPT_UNKNOWN, T1 | {"unknown_since": 1.0}, "t0001.a1 unreachable"),
        (EventKind.PILOT_SUBMITTED, _INTENT, "p0001 submitted; 0.000 node-hours used, 2.17 reserved"),
        (EventKind.PILOT_ENDED, _PILOT, "p0001 ended; the search so far: 0.250 node-hours used, 0.167 reserved"),
        (EventKind.SEARCH_STATE, _FAILED, "search failed (three trials in a row crashed alike): ImportError"),
    ):
        search.event(kind, **data)
        assert f" {line}" in event_line(search.events[-1], search.record)


def test_an_event_is_stamped_with_its_own_time_and_one_of_a_later_version_has_no_line():
    took_over = Event(3, 1, 0.0, EventKind.DRIVER_TOOK_OVER, {"host": "n2", "pid": 4711})
    assert event_line(took_over, SearchUnderTest().record) == "00:00:00 process 4711 on n2 is now the driver"
    assert event_line(Event(3, 1, 0.0, "planet_found", {"planet": "Vulcan"}), SearchUnderTest().record) is None


def test_an_attempt_that_becomes_a_step_of_its_pilot_is_queued_once_and_its_step_is_named():
    search = SearchUnderTest()
    search.propose()
    search.submit()
    told = search.launch(job_id="4711"), search.launch(job_id="4711.0"), search.run(nodes=["n1"])
    lines = [event_line(event, record) for event, record in zip(told, search.records[-3:], strict=True)]
    assert [line and line.split(" ", 1)[1] for line in lines] == [
        "t0001.a1 queued as 4711",
        None,
        "t0001.a1 running as 4711.0 on n1",
    ]
