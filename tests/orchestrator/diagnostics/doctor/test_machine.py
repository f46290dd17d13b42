"""Findings about this machine, folders, ledgers and MLflow; a check that hangs or fails loses only its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from resource import RLIM_INFINITY
from types import SimpleNamespace

import pytest

from dashboards.mlflow.sync import MlflowSync
from dashboards.schema import TrackingSection
from orchestrator.diagnostics.doctor import folders, machine
from orchestrator.diagnostics.doctor.finding import Area, Finding, Severity, ok
from orchestrator.diagnostics.doctor.folders import (
    check_folder,
    folder_clock_finding,
    folder_sharing_finding,
    room_findings,
    write_access_findings,
    writing_findings,
)
from orchestrator.diagnostics.doctor.machine import (
    check_machine,
    describe_load,
    library_findings,
    limit_findings,
    python_finding,
    umask_finding,
)
from orchestrator.diagnostics.doctor.run import DoctorTarget, findings_with_timeout, run_checks
from orchestrator.diagnostics.doctor.storage import check_ledger, check_mlflow
from search_spaces.errors import ExternalError, InputError
from slurm.interface import SlurmUnreachable
from tests.fake_slurm.client import FakeSlurm
from tests.fake_slurm.cluster import FakeCluster
from tests.fake_slurm.placement import FakeNode
from trials.files import path_owners
from trials.ledger.writer import LedgerWriter

WANTED = ["ray<3,>=2.60", "numpy>=2", 'torch>=2.6; extra == "trainer"']
ROOM = {"files": 4096, "processes": RLIM_INFINITY, "cpu_s": RLIM_INFINITY, "locked_bytes": RLIM_INFINITY}


def levels(findings) -> list[tuple[str, Severity]]:
    return [(finding.name, finding.level) for finding in findings]


@pytest.mark.parametrize(
    ("load", "cpus", "is_busy"), [(0.0, 2, False), (0.4, 2, False), (0.5, 2, True), (7.9, 32, False)]
)
def test_a_machine_is_busy_from_a_quarter_of_its_cpus_on(load, cpus, is_busy):
    assert (describe_load(load, cpus) is not None) is is_busy


@pytest.mark.parametrize(
    ("load", "ranks_run_here", "found"),
    [
        (0.5, True, [("load", Severity.WARNING)]),
        (0.5, False, [("load", Severity.NOTE)]),
        (24.7, False, [("load", Severity.WARNING)]),
    ],
)
def test_other_work_is_a_problem_where_ranks_run_and_where_it_takes_all_cpus(monkeypatch, load, ranks_run_here, found):
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (load, 1.0, 1.0))
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert [pair for pair in levels(check_machine(ranks_run_here)) if pair[0] == "load"] == found


@pytest.mark.bad_input(47)
@pytest.mark.parametrize(
    ("found", "level"), [("3.10.14", Severity.ERROR), ("3.11.0", Severity.OK), ("3.13.0rc1", Severity.OK)]
)
def test_an_unsupported_python_is_an_error(found, level):
    assert python_finding(found, ">=3.11").level is level


@pytest.mark.bad_input(47)
def test_a_library_below_its_floor_or_missing_is_named_with_what_is_needed():
    found = {"ray": "2.9.3", "numpy": "2.4.0"}
    [fault] = library_findings(WANTED, found.get)
    assert (fault.name, fault.level) == ("library", Severity.ERROR)
    assert "ray 2.9.3" in fault.message
    assert "2.60" in fault.message
    assert "constraints.txt" in (fault.fix or "")
    assert [f.message.split()[0] for f in library_findings(WANTED, {"ray": "2.60.0"}.get)] == ["numpy"]
    assert levels(library_findings(WANTED, {"ray": "2.60.0", "numpy": "2.0"}.get)) == [("libraries", Severity.OK)]


@pytest.mark.bad_input(47)
@pytest.mark.parametrize(
    ("umask", "level"),
    [
        (0o000, Severity.WARNING),
        (0o020, Severity.WARNING),
        (0o022, Severity.OK),
        (0o002, Severity.OK),
        (None, Severity.OK),
    ],
)
def test_a_umask_that_lets_everybody_write_is_warned_of(umask, level):
    assert umask_finding(umask).level is level


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, [("limits", Severity.OK)]),
        ({"files": 256}, [("limits", Severity.WARNING)]),
        ({"cpu_s": 1800}, [("limits", Severity.WARNING)]),
        ({"locked_bytes": 65536}, [("locked_memory", Severity.NOTE)]),
    ],
)
def test_limits_of_the_shell_that_a_driver_or_its_jobs_would_meet(changes, found):
    assert levels(limit_findings({**ROOM, **changes})) == found


def test_a_folder_that_will_be_made_is_tried_where_it_will_be_and_nothing_is_left(tmp_path):
    findings = {f.name: f for f in check_folder(tmp_path / "a" / "b", runs_on_nodes=False, is_sandbox=False)}
    assert {f.level for f in findings.values()} == {Severity.OK}
    assert f"will be created in {tmp_path}" in findings["work_dir"].message
    assert set(findings) == {"work_dir", "file_system", "writable", "clock", "space"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input(32)
@pytest.mark.parametrize(
    ("kind", "runs_on_nodes", "is_sandbox", "level"),
    [
        ("lustre", True, False, Severity.OK),
        ("ext4", True, False, Severity.WARNING),
        (None, True, False, Severity.WARNING),
        ("ext4", True, True, Severity.OK),
        ("ext4", False, False, Severity.OK),
    ],
)
def test_a_folder_that_nodes_may_not_share_is_a_warning(kind, runs_on_nodes, is_sandbox, level):
    finding = folder_sharing_finding(Path("/data/runs"), kind, runs_on_nodes, is_sandbox)
    assert finding.level is level
    assert level is Severity.OK or "--submit-test" in (finding.fix or "")


@pytest.mark.bad_input(32)
def test_a_folder_that_takes_no_file_is_an_error_in_the_systems_words(tmp_path, monkeypatch):
    def full(path: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(folders, "_write", full)
    [finding] = writing_findings(tmp_path)
    assert (finding.name, finding.level) == ("writable", Severity.ERROR)
    assert "quota" in finding.message.lower()
    assert list(tmp_path.iterdir()) == []


def test_clocks_apart_are_a_warning():
    assert folder_clock_finding(0.5).level is Severity.OK
    assert "90 s apart" in folder_clock_finding(90.0).message
    assert folder_clock_finding(90.0).level is Severity.WARNING


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    little = os.statvfs_result((4096, 4096, 10**6, 1000, 1000, 10**5, 50, 50, 0, 255))
    monkeypatch.setattr(folders.os, "statvfs", lambda path: little)
    assert [(f.name, f.level) for f in room_findings(tmp_path)] == [
        ("space", Severity.WARNING),
        ("files", Severity.NOTE),
    ]


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder for searches inside a group-writable one."""
    monkeypatch.setattr(path_owners.grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="physics", gr_mem=["ada"]))
    (tmp_path / "project" / "runs").mkdir(mode=0o755, parents=True)
    (tmp_path / "project").chmod(0o2775)
    return tmp_path / "project"


@pytest.mark.security("paths")
def test_a_group_that_could_put_a_folder_in_the_place_of_a_search_is_named(project):
    [finding] = write_access_findings(project / "runs" / "to be made")
    assert (finding.name, finding.level) == ("others_write", Severity.WARNING)
    assert finding.message.startswith(f"group physics can write to {project} ")
    assert f"chmod g-w,o-w {project}" in (finding.fix or "")


def ledger_finding(url: str | None) -> Finding:
    [finding] = findings_with_timeout(Area.RECORDS, lambda: check_ledger(url))
    return finding


def test_a_ledger_is_not_made_and_one_that_is_there_is_counted(own_home, tmp_path):
    finding = ledger_finding(None)
    assert finding.level is Severity.OK
    assert "will be created by the first search" in finding.message
    assert not (own_home / "ledger.db").exists()
    url = f"sqlite:///{tmp_path}/mine.db"
    with closing(LedgerWriter(url)):
        pass
    assert (ledger_finding(url).level, "it has 0 searches" in ledger_finding(url).message) == (Severity.OK, True)


@pytest.mark.bad_input(33, 34)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/ledger", "unknown driver"),
        ("postgresql://me:secret@host/ledger", "holds a password"),
        ("sqlite:///{folder}/nowhere/ledger.db", "no file can be created in"),
        ("sqlite:///{folder}/other.db", "file is not a database"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_an_error_with_what_to_do(tmp_path, url, words):
    (tmp_path / "other.db").write_text("this is no database, " * 100)
    finding = ledger_finding(url.replace("{folder}", str(tmp_path)))
    assert finding.level is Severity.ERROR
    assert words in finding.message
    assert "secret" not in finding.message + (finding.fix or "")
    assert finding.fix


@pytest.mark.bad_input(36)
def test_an_experiment_that_was_deleted_is_an_error_and_a_server_that_is_away_a_warning(monkeypatch):
    problem = InputError.of("mlflow", "was deleted", key="tracking.experiment", fix="mlflow experiments restore")
    answers = iter([problem, "MLflow is unreachable"])

    def check(self: MlflowSync) -> str:
        answer = next(answers)
        if isinstance(answer, InputError):
            raise answer
        return answer

    monkeypatch.setattr(MlflowSync, "check", check)
    tracking = TrackingSection(mlflow_uri="http://127.0.0.1:1")
    [deleted], [away] = check_mlflow(tracking), check_mlflow(tracking)
    assert (deleted.level, away.level, away.name) == (Severity.ERROR, Severity.WARNING, "mlflow")
    assert "restore" in (deleted.fix or "")


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
    assert [(f.name, f.level) for f in found] == [("first", Severity.OK), ("no_answer", Severity.ERROR)]
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
    assert (first.name, fault.name, fault.level) == ("first", name, Severity.ERROR)
    assert fault.fix


def test_without_a_search_file_its_own_areas_are_left_out(own_home):
    target = DoctorTarget(None, "local", None, FakeSlurm(FakeCluster([FakeNode("n1")])))
    told: list[Area] = []
    found = run_checks(target, told.append)
    assert told == [area for area, _ in found.areas] == [Area.MACHINE, Area.RECORDS]
    assert list(own_home.iterdir()) == []
