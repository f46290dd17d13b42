"""Users who could replace the target of a path."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.strangers import STRANGER, needs_a_stranger
from trials.files import path_owners
from trials.files.path_owners import WriterKind, untrusted_writers

pytestmark = pytest.mark.security("paths")


@pytest.fixture
def way(tmp_path) -> Path:
    """`project/ada/runs`, of which the last does not exist yet."""
    (tmp_path / "project" / "ada").mkdir(parents=True, mode=0o755)
    return tmp_path / "project" / "ada" / "runs"


def found(path: Path) -> list[tuple[Path, WriterKind]]:
    return [(writer.path, writer.kind) for writer in untrusted_writers(path)]


@needs_a_stranger
@pytest.mark.parametrize(
    ("mode", "trusted", "may"),
    [(0o700, "", True), (0o1777, f"1{STRANGER}", True), (0o755, f"smith,{STRANGER}", False)],
)
def test_whoever_owns_a_folder_above_may_whatever_its_mode_unless_the_user_trusts_them(
    way, monkeypatch, mode, trusted, may
):
    monkeypatch.setenv("PARLAY_TRUSTED_OWNERS", trusted)
    os.chown(way.parents[1], STRANGER, -1)
    way.parents[1].chmod(mode)
    assert found(way) == ([(way.parents[1], WriterKind.OWNER)] if may else [])


@needs_a_stranger
def test_whoever_owns_the_folder_itself_or_a_link_to_it_may(way):
    way.mkdir()
    os.chown(way, STRANGER, -1)
    assert found(way) == [(way, WriterKind.OWNER)]
    way.rmdir()
    way.symlink_to(way.parents[1])
    os.chown(way, STRANGER, -1, follow_symlinks=False)
    assert found(way / "deeper") == [(way, WriterKind.OWNER)]


@needs_a_stranger
@pytest.mark.parametrize("is_absolute", [True, False])
def test_the_folders_behind_a_link_count_too(way, is_absolute):
    behind = way.parents[1] / "behind"
    (behind / "runs").mkdir(parents=True)
    os.chown(behind, STRANGER, -1)
    way.symlink_to(behind / "runs" if is_absolute else Path("../behind/runs"))
    assert found(way / "deeper") == [(behind, WriterKind.OWNER)]


def test_on_a_way_of_ones_own_nobody_may_and_a_link_in_a_circle_is_no_way(way):
    assert path_owners.uid_as_seen_by(Path("/proc")) == os.geteuid(), "where we may not write"
    assert found(way) == []
    way.symlink_to(way)
    with pytest.raises(OSError, match="symbolic links"):
        found(way)


@pytest.mark.parametrize(("mode", "who"), [(0o777, [WriterKind.EVERYBODY]), (0o1777, []), (0o3775, [])])
def test_everybody_may_in_a_folder_that_all_may_write_unless_it_is_sticky(way, mode, who):
    way.parents[1].chmod(mode)
    assert [entry for _, entry in found(way)] == who


def test_a_group_may_unless_it_is_ones_own(way, monkeypatch):
    monkeypatch.setattr(path_owners.grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="physics", gr_mem=["ada"]))
    way.parents[1].chmod(0o2775)
    [writer] = untrusted_writers(way)
    assert (writer.path, writer.kind, writer.name) == (way.parents[1], WriterKind.GROUP, "group physics")
    monkeypatch.setattr(path_owners.grp, "getgrgid", unnamed)
    assert [found.name for found in untrusted_writers(way)] == [f"group {way.parents[1].stat().st_gid}"]
    monkeypatch.setattr(path_owners.pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="physics"))
    monkeypatch.setattr(path_owners.grp, "getgrgid", lambda gid: SimpleNamespace(gr_name="physics", gr_mem=[]))
    assert found(way) == []


def unnamed(gid: int) -> None:
    raise KeyError(gid)


@needs_a_stranger
def test_a_file_system_that_calls_us_otherwise_has_no_strangers_folders(way, monkeypatch):
    os.chown(way.parent, STRANGER, -1)
    monkeypatch.setattr(
        path_owners, "uid_as_seen_by", lambda folder: STRANGER if folder == way.parent else os.geteuid()
    )
    assert found(way) == []


@needs_a_stranger
def test_in_a_container_without_the_hosts_users_one_it_cannot_name_is_no_stranger(way, monkeypatch):
    os.chown(way.parent, path_owners.OVERFLOW_UID, -1)
    assert found(way) == [(way.parent, WriterKind.OWNER)]
    monkeypatch.setattr(path_owners, "_maps_all_users", lambda: False)
    assert found(way) == []
