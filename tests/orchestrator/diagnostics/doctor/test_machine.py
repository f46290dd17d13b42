"""Findings about Python, outdated libraries, umask and the shell's limits."""

from __future__ import annotations

from resource import RLIM_INFINITY

import pytest

from orchestrator.diagnostics.doctor import machine
from orchestrator.diagnostics.doctor.finding import Finding, Level
from orchestrator.diagnostics.doctor.machine import (
    check_machine,
    library_findings,
    limit_findings,
    python_finding,
    umask_finding,
)

WANTED = ["ray<3,>=2.60", "numpy>=2", 'torch>=2.6; extra == "trainer"']
ROOM = {"files": 4096, "processes": RLIM_INFINITY, "cpu_s": RLIM_INFINITY, "locked_bytes": RLIM_INFINITY}


def levels(findings) -> list[tuple[str, Level]]:
    return [(finding.name, finding.level) for finding in findings]


def test_this_machine_runs_parlay():
    assert Level.ERROR not in {finding.level for finding in check_machine(ranks_run_here=True)}


@pytest.mark.parametrize(
    ("load", "ranks_run_here", "found"),
    [
        (0.4, True, []),
        (0.5, True, [("load", Level.WARNING)]),
        (0.5, False, [("load", Level.NOTE)]),
        (24.7, False, [("load", Level.WARNING)]),
    ],
)
def test_other_work_is_a_problem_where_ranks_run_and_where_it_takes_all_cpus(monkeypatch, load, ranks_run_here, found):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 1.0, 1.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert [pair for pair in levels(check_machine(ranks_run_here)) if pair[0] == "load"] == found


@pytest.mark.bad_input(47)
@pytest.mark.parametrize(("found", "level"), [("3.10.14", Level.ERROR), ("3.11.0", Level.OK), ("3.13.0rc1", Level.OK)])
def test_an_unsupported_python_is_an_error(found, level):
    assert python_finding(found, ">=3.11").level is level


@pytest.mark.bad_input(47)
def test_a_library_below_its_floor_or_missing_is_named_with_what_is_needed():
    found = {"ray": "2.9.3", "numpy": "2.4.0"}
    [fault] = library_findings(WANTED, found.get)
    assert (fault.name, fault.level) == ("library", Level.ERROR)
    assert "ray 2.9.3" in fault.message
    assert "2.60" in fault.message
    assert "constraints.txt" in (fault.fix or "")
    assert [f.message.split()[0] for f in library_findings(WANTED, {"ray": "2.60.0"}.get)] == ["numpy"]
    assert levels(library_findings(WANTED, {"ray": "2.60.0", "numpy": "2.0"}.get)) == [("libraries", Level.OK)]


@pytest.mark.bad_input(47)
@pytest.mark.parametrize(
    ("umask", "level"),
    [(0o000, Level.WARNING), (0o020, Level.WARNING), (0o022, Level.OK), (0o002, Level.OK), (None, Level.OK)],
)
def test_a_umask_that_lets_everybody_write_is_warned_of(umask, level):
    assert umask_finding(umask).level is level


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, [("limits", Level.OK)]),
        ({"files": 256}, [("limits", Level.WARNING)]),
        ({"processes": 100}, [("limits", Level.WARNING)]),
        ({"cpu_s": 1800}, [("limits", Level.WARNING)]),
        ({"locked_bytes": 65536}, [("locked_memory", Level.NOTE)]),
        ({"files": 256, "cpu_s": 60}, [("limits", Level.WARNING), ("limits", Level.WARNING)]),
    ],
)
def test_limits_of_the_shell_that_a_driver_or_its_jobs_would_meet(changes, found):
    assert levels(limit_findings({**ROOM, **changes})) == found


def test_every_finding_but_ok_says_what_to_do():
    with pytest.raises(ValueError, match="what to do"):
        Finding("x", Level.WARNING, "bad")
    with pytest.raises(ValueError, match="what to do"):
        Finding("x", Level.OK, "good", "nothing")
