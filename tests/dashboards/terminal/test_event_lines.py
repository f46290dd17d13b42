"""Lines of events."""

from __future__ import annotations

import re

import pytest

from dashboards.terminal.event_lines import event_line
from search_spaces.layouts.layout import Layout
from tests.dashboards.compared import plain_lines
from tests.dashboards.searches import SearchUnderTest, ended_search
from trials.ledger.events import Event, EventKind
from trials.trial import FailureReason


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
_PILOT = {"pilot": "p0001", "job_id": "4711", "node_hours": 0.25, "billed_hours": None}


def test_what_happens_beside_is_one_remark():
    search = SearchUnderTest()
    search.start(Layout())
    for kind, data, line in (
        (EventKind.ATTEMPT_UNKNOWN, T1 | {"unknown_since": 1.0}, "t0001.a1 unreachable"),
        (EventKind.PILOT_ENDED, _PILOT, "p0001 ended; the search so far: 0.250 node-hours used"),
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
    search.event(EventKind.TRIAL_PROPOSED, trial="t0001", layout=Layout().to_json(), kind="search", prediction=None)
    search.submit("t0001", "a1")
    lines = []
    for job_id in ("4711", "4711.0"):
        search.event(EventKind.ATTEMPT_LAUNCHED, **T1, job_id=job_id)
        lines.append(event_line(search.events[-1], search.record))
    search.event(EventKind.ATTEMPT_RUNNING, **T1, started_at=1.0, nodes=["n1"])
    lines.append(event_line(search.events[-1], search.record))
    assert [line and line.split(" ", 1)[1] for line in lines] == [
        "t0001.a1 queued as 4711",
        None,
        "t0001.a1 running as 4711.0 on n1",
    ]
