"""Location of a ledger: on this machine's own disk, unless a server is named, and never with a password."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import make_url

from search_spaces.errors import InputError
from tests.strangers import STRANGER, needs_a_stranger
from trials.ledger import location
from trials.ledger.location import (
    checked_url,
    default_folder,
    existing_ledger_url,
    ledger_to_read,
    ledger_url,
    network_file_system,
)

MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
tmpfs /tmp tmpfs rw 0 0
home.example:/export/home /home nfs4 rw,vers=4.2 0 0
/dev/sdb1 /home/local xfs rw 0 0
10.0.0.1@o2ib:/scratch /scratch lustre rw,flock 0 0
systemd-1 /work autofs rw 0 0
gpfs1 /work gpfs rw 0 0
beegfs_nodev /bee\040hive beegfs rw 0 0
user@host:/ /mnt/far fuse.sshfs rw 0 0
""".lstrip()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        *(("/home/ada/.local/state/parlay", "nfs4"), ("/home/local/ada", None), ("/homeless/ada", None)),
        *(("/scratch/ada/ledger.db", "lustre"), ("/work/ada", "gpfs"), ("/bee hive/ada", "beegfs")),
        *(("/mnt/far/ledger.db", "sshfs"), ("/tmp/parlay", None), ("/", None)),
    ],
)
def test_the_deepest_mount_point_decides_whether_a_path_is_remote(path, kind):
    assert network_file_system(Path(path), MOUNTS) == kind
    assert network_file_system(Path(path), "") is None


@pytest.mark.parametrize(
    ("environ", "home", "folder"),
    [
        ({}, "/root", "/root/.local/state/parlay"),
        ({"XDG_STATE_HOME": "/var/state"}, "/root", "/var/state/parlay"),
        ({"XDG_STATE_HOME": "state"}, "/root", "/root/.local/state/parlay"),
        ({"PARLAY_HOME": "/opt/parlay", "XDG_STATE_HOME": "/var/state"}, "/root", "/opt/parlay"),
        ({}, "/home/ada", "/var/tmp/parlay-1000"),
        ({"PARLAY_HOME": "/scratch/ada"}, "/root", "/var/tmp/parlay-1000"),
    ],
)
def test_the_default_is_the_users_state_folder_unless_it_is_remote(environ, home, folder):
    assert default_folder(environ, Path(home), 1000, MOUNTS) == Path(folder)


def test_a_folder_is_the_users_alone_and_one_of_another_user_or_that_cannot_be_made_is_refused(
    own_home, monkeypatch, tmp_path
):
    folder = own_home / "deeper" / "parlay"
    monkeypatch.setenv("PARLAY_HOME", str(folder))
    assert make_url(ledger_url()).database == str(folder / "ledger.db")
    assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "file" / "parlay"))
    with pytest.raises(InputError, match=r"file/parlay cannot be created"):
        ledger_url()
    monkeypatch.setenv("PARLAY_HOME", str(own_home))
    monkeypatch.setattr(location.os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(InputError, match=r"is (world-)?writable"):
        ledger_url()


@pytest.mark.security("private_files")
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_folder_others_may_write_to_is_refused(own_home, mode):
    own_home.chmod(mode)
    with pytest.raises(InputError, match=r"is (world-)?writable"):
        ledger_url()


@pytest.mark.security("paths")
def test_a_link_in_the_place_of_the_folder_in_var_tmp_is_refused(tmp_path, monkeypatch):
    (tmp_path / "parlay-0").symlink_to(tmp_path)
    monkeypatch.setattr(location, "default_folder", lambda *_: tmp_path / "parlay-0")
    with pytest.raises(InputError, match=r"is (world-)?writable"):
        ledger_url()


def test_a_ledger_that_is_not_there_has_no_url_and_gets_no_folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("PARLAY_HOME", str(home))
    assert existing_ledger_url() is None
    assert existing_ledger_url(f"sqlite:///{tmp_path}/mine.db") is None
    assert not home.exists()
    home.mkdir(mode=0o700)
    (home / "ledger.db").touch()
    assert existing_ledger_url() == ledger_url()
    assert existing_ledger_url("postgresql://db/parlay") == ledger_url("postgresql://db/parlay")
    home.chmod(0o777)
    with pytest.raises(InputError, match=r"is (world-)?writable"):
        existing_ledger_url()


def test_a_ledger_that_is_named_to_look_into_is_there_and_parlays_own_need_not_be(own_home, tmp_path):
    mine, mime, other = (f"sqlite:///{tmp_path}/{name}.db" for name in ("mine", "mime", "other"))
    (tmp_path / "mine.db").touch()
    assert (ledger_to_read(), ledger_to_read(mine)) == (ledger_url(), ledger_url(mine))
    for missing, fix in ((mime, "did you mean mine.db? Else leave it out"), (other, "leave it out")):
        with pytest.raises(InputError, match="there is no database") as caught:
            ledger_to_read(missing)
        assert caught.value.problems[0].fix.startswith(fix)


@needs_a_stranger
@pytest.mark.security("paths")
@pytest.mark.parametrize("owned", ["file", "folder", "link"])
def test_a_file_that_another_user_could_swap_is_refused(tmp_path, owned):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "ledger.db").touch()
    link = tmp_path / "link"
    link.symlink_to(folder)
    theirs = {"file": folder / "ledger.db", "folder": folder, "link": link}[owned]
    os.chown(theirs, STRANGER, -1, follow_symlinks=False)
    with pytest.raises(InputError, match=f"belongs to user {STRANGER}"):
        ledger_url(f"sqlite:///{link}/ledger.db")


def test_a_local_file_is_taken_as_it_is_a_relative_one_made_absolute_and_postgres_spoken_to_by_psycopg(
    tmp_path, monkeypatch
):
    for database in ("/data/ledger.db", "/data/a b/%40?é.db", "/home/local/ledger.db"):
        given = f"sqlite:///{database.replace('%', '%25').replace('?', '%3F')}"
        assert make_url(checked_url(given, Path("/local"), MOUNTS)).database == database
    monkeypatch.chdir(tmp_path)
    assert make_url(ledger_url("sqlite:///mine.db")).database == str(tmp_path / "mine.db")
    expected = "postgresql+psycopg://ada@db.example:5433/parlay"
    for scheme in ("postgresql", "postgresql+psycopg"):
        assert checked_url(f"{scheme}://ada@db.example:5433/parlay", Path("/local"), MOUNTS) == expected


@pytest.mark.bad_input(34)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    "url",
    [
        *(
            "mysql://ada@db.example/parlay",
            "postgres://ada@db.example/parlay",
            "postgresql+asyncpg://db.example/parlay",
        ),
        *("ledger.db", "postgresql://db.example:port/parlay", "sqlite://", "sqlite:///file:x?mode=memory&uri=true"),
        *("postgresql://ada:hunter2@db.example/parlay", "postgresql://ada:hunter2@db.example:port/parlay"),
        *(f"postgresql://db.example/parlay?{name}=hunter2" for name in ("password", "sslpassword")),
    ],
)
def test_what_is_no_lasting_database_of_a_known_kind_or_has_a_password_is_refused_and_no_password_repeated(url):
    with pytest.raises(InputError) as caught:
        checked_url(url, Path("/local"), MOUNTS)
    [problem] = caught.value.problems
    assert "hunter2" in url or problem.code == "ledger_url"
    assert "hunter2" not in f"{caught.value}{problem.to_json()}"
