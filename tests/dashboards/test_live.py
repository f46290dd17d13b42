"""A search in the terminal: what is said of each event, and the table at the end."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.table import Table

from dashboards.headline import headline, room_lines
from dashboards.live import LiveView, console_for, event_line, progress_line, results_table
from dashboards.trial_words import flag_words
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.layout import Layout
from search_spaces.memory_floor import MemoryFloor
from tests.dashboards.searches import SearchUnderTest, ended_search
from trials.ledger.events import Event, EventKind, SearchRecord, SearchState
from trials.ranking import Objective, rank
from trials.trial import FailureReason

BATCH = 16
BASELINE = Layout(micro_batch_size=1, grad_accum_steps=16)


def compared_search() -> SearchUnderTest:
    """Layouts of one global batch: the baseline, one 1.6 times as fast with a tie, and one that ran out of memory."""
    search = SearchUnderTest()
    layouts = [
        BASELINE,
        Layout(micro_batch_size=2, grad_accum_steps=8, tensor_parallel=2, zero_stage=1),
        Layout(micro_batch_size=4, grad_accum_steps=4),
        Layout(micro_batch_size=8, grad_accum_steps=2, pipeline_parallel=2, engine="deepspeed"),
    ]
    names = [search.start(layout) for layout in layouts]
    for name, rate in zip(names, (100_000.0, 160_000.0, 159_000.0), strict=False):
        search.measure(name, rate)
    search.fail(names[3], FailureReason.GPU_OOM)
    search.best(names[1])
    return search


def ranking_of(search: SearchRecord):
    return rank(search.trials, Objective.TOKENS_PER_SEC, BATCH)


def shown(table: Table) -> list[str]:
    stream = io.StringIO()
    console_for(stream).print(table)
    return stream.getvalue().splitlines()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_table_has_the_best_first_marked_and_what_failed_last_with_its_reason():
    search = compared_search().record
    header, *rows = shown(results_table(search, ranking_of(search), BASELINE.key))
    assert header.split()[:7] == ["trial", "tp", "pp", "dp", "mb", "ga", "sched"]
    assert [row.split()[:2] for row in rows] == [["t0002", "*"], ["t0003", "="], ["t0001", "b"], ["t0004", "1"]]
    assert "160,000 ± 3,200" in rows[0]
    assert rows[3].split()[1:7] == ["1", "2", "1", "8", "2", "1f1b"]
    assert rows[3].split()[-1] == "gpu_oom"


def test_a_dominated_trial_shows_what_it_reaches_at_most():
    search = compared_search()
    search.dominate(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 90_000.0)
    said = event_line(search.events[-2], search.records[-2])
    assert said.endswith("failed dominated: 90,000 tokens/s")
    _, *rows = shown(results_table(search.record, ranking_of(search.record), BASELINE.key))
    assert "≤ 91,800" in rows[-1]
    assert rows[-1].split()[-1] == "dominated"


def repeated_search() -> SearchUnderTest:
    """The search above, whose best was measured again twice and whose baseline ran out of memory when it was."""
    search = compared_search()
    best = search.record.trial("t0002").layout
    for rate in (150_000.0, 152_000.0):
        search.measure(search.start(best, "finalist"), rate)
    search.fail(search.start(BASELINE, "finalist"), FailureReason.GPU_OOM)
    return search


def test_a_layout_that_was_measured_again_is_one_row_over_all_its_runs():
    search = repeated_search().record
    _, *rows = shown(results_table(search, ranking_of(search), BASELINE.key))
    assert [row.split()[:2] for row in rows[:3]] == [["t0002", "*"], ["t0003", "1"], ["t0001", "b"]]
    assert "152,000 ± " in rows[0]
    assert rows[0].split()[-2:] == ["3", "runs"]
    assert {row.split()[0] for row in rows[3:]} == {"t0004", "t0007"}
    assert next(row for row in rows if row.startswith("t0007")).split()[1] == "br"


def test_a_repeat_is_proposed_again():
    search = repeated_search()
    said = [event_line(e, r) or "" for e, r in zip(search.events, search.records, strict=True)]
    assert sum(" proposed again: " in words for words in said) == 3
    assert [words[9:14] for words in said if " proposed again: " in words] == ["t0005", "t0006", "t0007"]


def test_the_headline_compares_all_runs_of_both():
    search = compared_search()
    for layout, rate in ((search.record.trial("t0002").layout, 300_000.0), (BASELINE, 100_000.0)):
        for _ in range(2):
            search.measure(search.start(layout, "finalist"), rate)
    words = headline(search.record, ranking_of(search.record), BASELINE.key)
    assert words.startswith("best: t0002, ")
    assert "3.00 x faster than today" in words


def test_fields_without_a_column_are_shown_where_they_differ():
    search = compared_search().record
    table = results_table(search, ranking_of(search), BASELINE.key)
    assert "deepspeed" in shown(table)[4]
    alike = ended_search().record
    assert "other" not in shown(results_table(alike, ranking_of(alike), None))[0]


def test_no_line_is_wider_than_eighty_columns_without_a_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    search = SearchUnderTest()
    engines = ("torch", "megatron-deepspeed")
    for engine in engines:
        layout = Layout(
            tensor_parallel=1024,
            pipeline_parallel=128,
            data_parallel=2048,
            grad_accum_steps=1024,
            virtual_pipeline_stages=2,
            activation_checkpointing="selective",
            engine=engine,
        )
        search.measure(search.start(layout), 123_456_789.0)
    search.fail(search.start(Layout(precision="bf16")), FailureReason.CANCELLED_BY_SEARCH)
    lines = shown(results_table(search.record, ranking_of(search.record), None))
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert sum("123,456,789 ± 2,469,136" in line for line in lines) == 2


def test_the_headline_compares_with_what_runs_today_and_names_ties():
    search = compared_search().record
    words = headline(search, ranking_of(search), BASELINE.key)
    assert words.startswith("best: t0002, n1.tp2.pp1.dp1.mb2.ga8.z0.")
    assert "160,000 ± 3,200 tokens/s" in words
    assert "1.60 x faster than today (1.54 to 1.67)" in words
    assert words.endswith("not to be told from it: t0003")


def test_the_headline_says_of_a_layout_chosen_for_its_memory_why_and_how_much():
    search, layouts = SearchUnderTest(), (BASELINE, Layout(micro_batch_size=4, grad_accum_steps=4))
    for kind in ("search", "finalist", "finalist"):
        for layout, rate, peak_gib in zip(layouts, (100_000.0, 99_900.0), (3.0, 2.0), strict=True):
            search.measure(search.start(layout, kind), rate, peak_memory_gib=peak_gib)
    words = headline(search.record, ranking_of(search.record), BASELINE.key)
    assert words.startswith("best: t0002, ")
    assert "; 1.00 x as fast as today (" in words
    assert "; not to be told from t0001, the fastest, and needs 33 % less memory: 2 GiB, not 3; " in words
    assert words.endswith("not to be told from it: t0001")
    rows = shown(results_table(search.record, ranking_of(search.record), BASELINE.key))[1:]
    assert [row.split()[:2] for row in rows] == [["t0001", "=b"], ["t0002", "*"]]


def asking_for_room() -> SearchUnderTest:
    """Ranks of 10 GiB, of which 4 have to stay free; the faster of two layouts leaves one."""
    spec = {"name": "tiny", "cluster": Cluster(ACCELERATORS["cpu"], 1, 1).to_json()}
    spec |= {"constraints": {"min_free_memory_gib": 4.0}, "measure": {"memory_limit_gib": 10.0}}
    search = SearchUnderTest(spec)
    search.measure(search.start(BASELINE), 100_000.0, peak_memory_gib=9.0)
    return search


def test_a_layout_that_leaves_too_little_memory_is_said_to_and_is_last_in_the_table():
    search = asking_for_room()
    assert "leaves 1 GiB, constraints.min_free_memory_gib asks 4" in event_line(search.events[-2], search.record)
    search.measure(search.start(Layout(micro_batch_size=4, grad_accum_steps=4)), 80_000.0, peak_memory_gib=6.0)
    ranking = rank(search.record.trials, Objective.TOKENS_PER_SEC, BATCH, MemoryFloor.of_search(search.record.spec))
    _, kept, full = shown(results_table(search.record, ranking, None))
    assert (kept.split()[:2], full.split()[0]) == (["t0002", "*"], "t0001")
    assert full.rstrip().endswith("too full")
    (line,) = room_lines(ranking)
    assert line == "! t0001 leaves less memory free than asked: constraints.min_free_memory_gib asks 4 GiB"
    assert room_lines(ranking_of(search.record)) == []


def test_the_headline_says_where_no_layout_leaves_the_memory_asked_for():
    search, stream = asking_for_room(), io.StringIO()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        view.begin(search.record)
    assert "t0001 comes nearest and leaves 1 GiB" in stream.getvalue()


def test_the_headline_says_when_nothing_beats_today_or_was_measured():
    search = SearchUnderTest()
    assert headline(search.record, ranking_of(search.record), None) == "no layout has been measured yet"
    ended = replace(search.record, state=SearchState.FAILED)
    assert headline(ended, ranking_of(ended), None) == "no layout has a valid measurement"
    search.measure(search.start(BASELINE), 5.0)
    assert "nothing measured beats what runs today" in headline(search.record, ranking_of(search.record), BASELINE.key)


def test_the_headline_says_where_what_beats_today_leaves_too_little_memory():
    search, today = asking_for_room(), Layout(micro_batch_size=4, grad_accum_steps=4)
    search.measure(search.start(today), 80_000.0, peak_memory_gib=6.0)
    ranking = rank(search.record.trials, Objective.TOKENS_PER_SEC, BATCH, MemoryFloor.of_search(search.record.spec))
    words = headline(search.record, ranking, today.key)
    assert "no layouts measured that leave 4 GiB free beat what runs today" in words


def test_progress_counts_trials_and_names_the_best():
    search = compared_search()
    search.start(Layout(micro_batch_size=16))
    line = progress_line(search.record, ranking_of(search.record))
    assert line == "tiny-abcdef: 3 measured, 1 failed, 1 in flight, best t0002, 1.000+0.167 node-hours"


def test_a_cancelled_trial_has_not_failed():
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.CANCELLED_BY_USER, excerpt="")
    search.event(EventKind.SEARCH_STATE, state="stopping", end_reason="cancelled_by_user", detail=None)
    line = progress_line(search.record, ranking_of(search.record))
    assert line == "tiny-abcdef stopping: 1 cancelled, 0.250 node-hours"
    words = [event_line(e, r) for e, r in zip(search.events, search.records, strict=True)]
    assert words[-3].endswith(" t0001.a1 cancelled_by_user")


def test_every_event_that_matters_is_one_line():
    lines = _plain_lines(ended_search())
    words = [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]
    assert words[:5] == [
        "search tiny-abcdef created",
        "search running",
        f"t0001 proposed: {Layout().key}",
        "t0001.a1 queued as job-t0001-a1",
        "t0001.a1 running on node1 node2",
    ]
    assert "t0001.a1 measured: 1,000 ± 20 tokens/s, 1 s a step, 1.5 GiB" in words
    assert "t0002.a1 failed node_failure: it broke" in words
    assert "t0003.a1 failed gpu_oom: torch.OutOfMemoryError" in words
    assert words[-2:] == ["t0002 is the best", "search completed max_trials"]


def test_flags_stand_in_the_line_of_a_measurement_and_are_explained_once():
    search = SearchUnderTest()
    for flags in (("extrapolated",), ("time_limit", "extrapolated")):
        search.measure(search.start(Layout()), 1000.0, flags)
    lines = _plain_lines(search)
    first, second = (i for i, line in enumerate(lines) if " measured: " in line)
    assert lines[first].endswith("1 s a step, 1.5 GiB; flagged extrapolated")
    assert lines[first + 1].startswith("  extrapolated: its step time follows from ")
    assert lines[second].endswith("; flagged time_limit, extrapolated")
    assert lines[second + 1].startswith("  time_limit: ")
    assert sum("extrapolated: " in line for line in lines) == 1


def test_where_the_time_of_a_step_goes_stands_below_its_measurement():
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 1000.0, ("time_limit",), time_s={"compute": 0.75, "bubble": 0.25})
    lines = _plain_lines(search)
    assert lines[-2:] == ["  step time: compute 75 %, bubble 25 %", f"  {flag_words('time_limit')}"]


def test_a_flagged_measurement_has_a_mark_in_the_table():
    search = compared_search()
    search.measure(search.start(Layout(micro_batch_size=16, grad_accum_steps=1)), 9.0, ("extrapolated",))
    _, *rows = shown(results_table(search.record, ranking_of(search.record), BASELINE.key))
    assert [row.split()[1] for row in rows if row.startswith("t0005")] == ["!"]


def _plain_lines(search: SearchUnderTest) -> list[str]:
    """What a log file gets of all this search's events."""
    stream = io.StringIO()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        for record, event in zip(search.records, search.events, strict=True):
            view.update(record, event)
    return stream.getvalue().splitlines()


def test_a_log_file_gets_no_terminal_codes():
    assert "\x1b" not in "\n".join(_plain_lines(ended_search()))


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
    assert "1.50 x faster than today" in drawn
    assert "3 of at most 8" in drawn
    assert " of 1:00:00" in drawn
    assert "t0003.a1 running for 1:30" in stream.getvalue()


def test_a_log_file_that_begins_in_the_middle_says_first_how_far_the_search_is():
    search, stream = compared_search(), io.StringIO()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, BASELINE.key, stream) as view:
        view.begin(search.record)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("tiny-abcdef: 3 measured, 1 failed, best t0002")
    assert "1.60 x faster than today" in second


@pytest.mark.parametrize("kind", ["dumb", "unknown"])
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch, kind):
    monkeypatch.setenv("TERM", kind)
    stream = Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        search = SearchUnderTest()
        view.update(search.records[0], search.events[0])
    assert "search tiny-abcdef created" in stream.getvalue()


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


def test_the_line_below_the_table_does_not_wrap(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    search = compared_search()
    search.start(Layout(micro_batch_size=16))
    stream = Terminal()
    with LiveView(Objective.TOKENS_PER_SEC, BATCH, None, stream) as view:
        view.update(search.record, search.events[-1])
        view._live.refresh()
    assert "tiny-abcdef: 3 measured, 1 fa…" in stream.getvalue()


@pytest.mark.parametrize(
    ("excerpt", "remark"),
    [
        ("pipeline_parallel: is 3\n  rule: it divides the layers\n  fix: 2 or 4", "pipeline_parallel: is 3"),
        ("Traceback (most recent call last):\n  File x\nValueError: no\n  fix: none", "fix: none"),
        ("rank 1 exited with code 2\npython: no such file", "python: no such file"),
    ],
)
def test_of_a_problem_the_first_line_is_shown_and_of_a_traceback_or_a_log_the_last(excerpt, remark):
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.INVALID_LAYOUT, excerpt=excerpt)
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    assert event_line(event, search.record).endswith(f"t0001.a1 failed invalid_layout: {remark}")


_ON_A_GPU = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79 GiB"
)
_ON_A_CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"
    " tried to allocate 67108864 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("excerpt", "limit_gib", "words"),
    [
        (_ON_A_GPU, None, "rank 3 ran out of memory in phase build, asking for 2.50 GiB more"),
        (
            _ON_A_CPU,
            0.25,
            "rank 3 ran out of memory in phase build, asking for 64 MiB more; its limit is 0.25 GiB"
            " (measure.memory_limit_gib)",
        ),
        ("MemoryError", None, "rank 3 ran out of memory in phase build"),
    ],
)
def test_out_of_memory_is_told_with_rank_phase_and_limit(excerpt, limit_gib, words):
    search = SearchUnderTest({"measure": {"memory_limit_gib": limit_gib}})
    search.fail(search.start(Layout()), FailureReason.GPU_OOM, excerpt, outcome={"rank": 3, "phase": "build"})
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    assert event_line(event, search.record).endswith(f"t0001.a1 failed gpu_oom: {words}")


def test_a_hang_is_told_with_rank_and_phase_and_not_with_the_line_where_the_rank_stands():
    search = SearchUnderTest()
    excerpt = "no progress for 300 s; the rank stands at\n  File x, line 3\n    work.wait()\n"
    search.fail(search.start(Layout()), FailureReason.HANG, excerpt, outcome={"rank": 1, "phase": "warmup"})
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    words = "t0001.a1 failed hang: rank 1 made no progress for 300 s in phase warmup"
    assert event_line(event, search.record).endswith(words)


def test_why_a_search_ended_is_one_remark():
    search = SearchUnderTest()
    detail = "Traceback (most recent call last):\n  File x\nImportError: no module"
    search.event(EventKind.SEARCH_STATE, state="failed", end_reason="script_error", detail=detail)
    assert event_line(search.events[-1], search.record).endswith(" search failed script_error: ImportError: no module")


def test_a_recorded_search_says_once_that_its_clock_is_simulated():
    said = "times are those of the measured table's simulated clock"
    recorded = SearchUnderTest({"launcher": {"kind": "recorded"}})
    recorded.start(Layout())
    lines = _plain_lines(recorded)
    assert lines[0] == said
    assert lines.count(said) == 1
    assert said not in _plain_lines(ended_search())


def test_an_event_of_a_kind_from_a_later_version_has_no_line():
    event = Event(3, 1, 0.0, "planet_found", {"planet": "Vulcan"})
    assert event_line(event, SearchUnderTest().record) is None


@pytest.mark.bad_input(50)
def test_control_characters_cannot_steer_the_terminal():
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.SCRIPT_ERROR, excerpt="bad \x1b[2Jname\u202e\x07")
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    assert event_line(event, search.record).endswith(r"bad \x1b[2Jname\u202e\x07")


def test_an_attempt_that_cannot_be_seen_is_not_called_ended():
    search = SearchUnderTest()
    trial = search.start(Layout())
    search.event(EventKind.ATTEMPT_UNKNOWN, trial=trial, attempt="a1", unknown_since=1.0)
    assert event_line(search.events[-1], search.record).endswith("t0001.a1 cannot be seen just now")
    search.event(EventKind.ATTEMPT_UNKNOWN, trial=trial, attempt="a1", unknown_since=None)
    assert event_line(search.events[-1], search.record).endswith("t0001.a1 is seen again")


def test_an_event_is_stamped_with_its_own_time():
    event = Event(1, 1, 0.0, EventKind.SEARCH_CREATED, {})
    assert event_line(event, SearchUnderTest().record) == "00:00:00 search tiny-abcdef created"


def test_another_driver_is_named():
    event = Event(3, 2, 0.0, EventKind.DRIVER_TOOK_OVER, {"host": "login2", "pid": 4711})
    assert event_line(event, SearchUnderTest().record) == "00:00:00 process 4711 on login2 drives the search"
