"""A check that hangs, fails or is refused loses only its own findings."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from orchestrator.diagnostics.doctor.finding import Area, Finding, Level, ok
from orchestrator.diagnostics.doctor.run import DoctorTarget, findings_with_timeout, run_checks
from search_spaces.errors import ExternalError, InputError
from slurm.fake.client import FakeSlurm
from slurm.fake.cluster import FakeCluster
from slurm.fake.placement import FakeNode
from slurm.interface import SlurmUnreachable


@pytest.mark.slow
def test_a_check_that_hangs_is_an_error_beside_what_it_found_before():
    released = threading.Event()

    def hanging() -> Iterator[Finding]:
        yield ok("first", "is well")
        released.wait(60)

    try:
        found = findings_with_timeout(Area.FOLDERS, hanging, limit_s=0.2)
    finally:
        released.set()
    assert [(f.name, f.level) for f in found] == [("first", Level.OK), ("no_answer", Level.ERROR)]
    assert "work directory: no answer within" in found[1].message


@pytest.mark.parametrize(
    ("raised", "name"),
    [
        (InputError.of("batch", "is 7", key="global_batch_size", fix="8"), "batch"),
        (ExternalError("gone"), "refused"),
        (SlurmUnreachable("scontrol: no answer"), "controller"),
        (PermissionError(13, "Permission denied", "/data"), "unreadable"),
    ],
)
def test_what_a_check_raises_is_a_finding_with_what_to_do(raised, name):
    def failing() -> Iterator[Finding]:
        yield ok("first", "is well")
        raise raised

    first, fault = findings_with_timeout(Area.SLURM, failing)
    assert (first.name, fault.name, fault.level) == ("first", name, Level.ERROR)
    assert fault.fix


def test_without_a_search_file_its_own_areas_are_left_out(own_home):
    target = DoctorTarget(None, "local", None, FakeSlurm(FakeCluster([FakeNode("n1")])))
    told: list[Area] = []
    found = run_checks(target, told.append)
    assert told == [area for area, _ in found.areas] == [Area.MACHINE, Area.RECORDS]
    assert list(own_home.iterdir()) == []
