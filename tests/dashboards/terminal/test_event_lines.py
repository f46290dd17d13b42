"""Lines of events."""

from __future__ import annotations

import re

import pytest

from dashboards.terminal.event_lines import event_line
from dashboards.terminal.live_table import progress_line
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings
from tests.dashboards.compared import plain_lines, repeated_search
from tests.dashboards.searches import SearchUnderTest, ended_search
from trials.ledger.events import Event, EventKind
from trials.trial import FailureReason


def test_a_repeat_is_proposed_as_one():
    search = repeated_search()
    said = [event_line(e, r) or "" for e, r in zip(search.events, search.records, strict=True)]
    assert sum(" proposed as a repeat: " in words for words in said) == 3
    assert [words[9:14] for words in said if " proposed as a repeat: " in words] == ["t0005", "t0006", "t0007"]


def test_a_layout_is_proposed_by_the_axes_that_have_varied_so_far():
    search, values = SearchUnderTest(), ("Ring", "x" * 1000)
    for value in values:
        search.start(Layout(settings=Settings({"NCCL_ALGO": value}, {}).text))
    first, second = (line.partition(" proposed: ")[2] for line in plain_lines(search) if " proposed: " in line)
    assert first == "tp1 pp1 dp1 mb1"
    assert second.startswith("tp1 pp1 dp1 mb1 NCCL_ALGO=xxx")
    assert len(second) < 80


def test_a_cancelled_trial_has_not_failed():
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.CANCELLED_BY_USER, excerpt="")
    search.event(EventKind.SEARCH_STATE, state="stopping", end_reason="cancelled_by_user", detail=None)
    line = progress_line(search.record)
    assert line == "tiny-abcdef stopping: 1 cancelled, 0.250 node-hours used"
    words = [event_line(e, r) for e, r in zip(search.events, search.records, strict=True)]
    assert words[-3].endswith(" t0001.a1 cancelled by the user")


def test_every_event_that_matters_is_one_line():
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
    assert "t0003.a1 failed, out of memory: torch.OutOfMemoryError" in words
    assert words[-2:] == ["t0002 leads so far", "search completed (reached the limit of search.max_trials)"]


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
    assert event_line(event, search.record).endswith(f"t0001.a1 failed, refused by the engine: {remark}")


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
def test_out_of_memory_is_reported_with_rank_phase_and_limit(excerpt, limit_gib, words):
    search = SearchUnderTest({"measure": {"memory_limit_gib": limit_gib}})
    search.fail(search.start(Layout()), FailureReason.GPU_OOM, excerpt, outcome={"rank": 3, "phase": "build"})
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    assert event_line(event, search.record).endswith(f"t0001.a1 failed, out of memory: {words}")


def test_a_hang_is_reported_with_rank_and_phase_and_not_with_the_line_where_the_rank_stands():
    search = SearchUnderTest()
    excerpt = "no progress for 300 s; the rank is at\n  File x, line 3\n    work.wait()\n"
    search.fail(search.start(Layout()), FailureReason.HANG, excerpt, outcome={"rank": 1, "phase": "warmup"})
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    words = "t0001.a1 failed, hang: rank 1 made no progress for 300 s in phase warmup"
    assert event_line(event, search.record).endswith(words)


def test_why_a_search_ended_is_one_remark():
    search = SearchUnderTest()
    detail = "Traceback (most recent call last):\n  File x\nImportError: no module"
    search.event(EventKind.SEARCH_STATE, state="failed", end_reason="script_error", detail=detail)
    line = event_line(search.events[-1], search.record)
    assert line.endswith(" search failed (three trials in a row crashed alike): ImportError: no module")


def test_an_event_of_a_kind_from_a_later_version_has_no_line():
    event = Event(3, 1, 0.0, "planet_found", {"planet": "Vulcan"})
    assert event_line(event, SearchUnderTest().record) is None


@pytest.mark.bad_input(50)
def test_control_characters_cannot_steer_the_terminal():
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.SCRIPT_ERROR, excerpt="bad \x1b[2Jname\u202e\x07")
    event = next(e for e in search.events if e.kind is EventKind.ATTEMPT_ENDED)
    assert event_line(event, search.record).endswith(r"bad \x1b[2Jname\u202e\x07")


def test_an_unreachable_attempt_has_not_ended():
    search = SearchUnderTest()
    trial = search.start(Layout())
    search.event(EventKind.ATTEMPT_UNKNOWN, trial=trial, attempt="a1", unknown_since=1.0)
    assert event_line(search.events[-1], search.record).endswith("t0001.a1 unreachable")
    search.event(EventKind.ATTEMPT_UNKNOWN, trial=trial, attempt="a1", unknown_since=None)
    assert event_line(search.events[-1], search.record).endswith("t0001.a1 reachable again")


def test_an_event_is_stamped_with_its_own_time():
    event = Event(1, 1, 0.0, EventKind.SEARCH_CREATED, {})
    assert event_line(event, SearchUnderTest().record) == "00:00:00 search tiny-abcdef created"


def test_another_driver_is_named():
    event = Event(3, 2, 0.0, EventKind.DRIVER_TOOK_OVER, {"host": "login2", "pid": 4711})
    assert event_line(event, SearchUnderTest().record) == "00:00:00 process 4711 on login2 is now the driver"


def test_an_attempt_that_becomes_a_step_of_its_pilot_is_queued_once_and_its_step_is_named():
    search, which = SearchUnderTest(), {"trial": "t0001", "attempt": "a1"}
    search.event(EventKind.TRIAL_PROPOSED, trial="t0001", layout=Layout().to_json(), kind="search", prediction=None)
    search.submit("t0001", "a1")
    lines = []
    for job_id in ("4711", "4711.0"):
        search.event(EventKind.ATTEMPT_LAUNCHED, **which, job_id=job_id)
        lines.append(event_line(search.events[-1], search.record))
    search.event(EventKind.ATTEMPT_RUNNING, **which, started_at=1.0, nodes=["n1"])
    lines.append(event_line(search.events[-1], search.record))
    assert [line and line.split(" ", 1)[1] for line in lines] == [
        "t0001.a1 queued as 4711",
        None,
        "t0001.a1 running as 4711.0 on n1",
    ]


def test_the_end_of_a_pilot_is_reported_with_what_was_used():
    search = SearchUnderTest()
    search.event(EventKind.PILOT_ENDED, pilot="p0001", job_id="4711", node_hours=0.25, billed_hours=None)
    assert event_line(search.events[-1], search.record).endswith(
        " p0001 ended; the search so far: 0.250 node-hours used"
    )
