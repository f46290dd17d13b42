"""Findings about a work directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.diagnostics.doctor import folders
from orchestrator.diagnostics.doctor.finding import Level
from orchestrator.diagnostics.doctor.folders import (
    check_folder,
    clock_finding,
    room_findings,
    sharing_finding,
    write_access_findings,
    writing_findings,
)
from tests.strangers import STRANGER, needs_a_stranger
from trials.files import path_owners


def test_a_folder_that_will_be_made_is_tried_where_it_will_be_and_nothing_is_left(tmp_path):
    findings = {f.name: f for f in check_folder(tmp_path / "a" / "b", runs_on_nodes=False, is_sandbox=False)}
    assert {f.level for f in findings.values()} == {Level.OK}
    assert f"will be created in {tmp_path}" in findings["work_dir"].message
    assert set(findings) == {"work_dir", "file_system", "writable", "clock", "space"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.bad_input(32)
@pytest.mark.parametrize(
    ("kind", "runs_on_nodes", "is_sandbox", "level"),
    [
        ("lustre", True, False, Level.OK),
        ("nfs4", True, False, Level.OK),
        ("ext4", True, False, Level.WARNING),
        ("tmpfs", True, False, Level.WARNING),
        (None, True, False, Level.WARNING),
        ("ext4", True, True, Level.OK),
        ("ext4", False, False, Level.OK),
    ],
)
def test_a_folder_that_nodes_may_not_share_is_a_warning(kind, runs_on_nodes, is_sandbox, level):
    finding = sharing_finding(Path("/data/runs"), kind, runs_on_nodes, is_sandbox)
    assert finding.level is level
    assert level is Level.OK or "--submit-test" in (finding.fix or "")


@pytest.mark.bad_input(32)
def test_a_folder_that_takes_no_file_is_an_error_in_the_systems_words(tmp_path, monkeypatch):
    def full(path: Path) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(folders, "_write", full)
    [finding] = writing_findings(tmp_path)
    assert (finding.name, finding.level) == ("writable", Level.ERROR)
    assert "quota" in finding.message.lower()
    assert list(tmp_path.iterdir()) == []


def test_clocks_apart_are_a_warning():
    assert clock_finding(0.5).level is Level.OK
    assert "90 s apart" in clock_finding(90.0).message
    assert clock_finding(90.0).level is Level.WARNING


def test_little_room_is_a_warning(tmp_path, monkeypatch):
    little = os.statvfs_result((4096, 4096, 10**6, 1000, 1000, 10**5, 50, 50, 0, 255))
    monkeypatch.setattr(folders.os, "statvfs", lambda path: little)
    assert [(f.name, f.level) for f in room_findings(tmp_path)] == [("space", Level.WARNING), ("files", Level.NOTE)]


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
    assert (finding.name, finding.level) == ("others_write", Level.WARNING)
    assert finding.message.startswith(f"group physics can write to {project} ")
    assert f"chmod g-w,o-w {project}" in (finding.fix or "")


@needs_a_stranger
def test_what_the_user_cannot_mend_is_a_note(project, monkeypatch):
    monkeypatch.setattr(folders.os, "geteuid", lambda: STRANGER)  # and the folder is root's
    assert [finding.level for finding in write_access_findings(project / "runs")] == [Level.NOTE]
