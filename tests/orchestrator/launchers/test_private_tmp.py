"""Private temporary folders of processes: made, kept, and removed once their owner is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.launchers import private_tmp
from orchestrator.launchers.private_tmp import make_private_folder, remove_abandoned, remove_unfinished, write_owner


@pytest.fixture(autouse=True)
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(private_tmp, "_parent", lambda: tmp_path)
    return tmp_path


def owned_by(folder: Path, **changes: object) -> Path:
    """The folder as this process made it, with another owner."""
    file = folder / "owner.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return folder


@pytest.mark.security("ray")
def test_a_folder_is_private() -> None:
    assert make_private_folder().stat().st_mode & 0o777 == 0o700


def unfinished(parent: Path, **changes: object) -> Path:
    """A half-created folder of a search, owned by this process or another one."""
    folder = parent / ".tiny-abcdef.part"
    (folder / "code").mkdir(parents=True)
    write_owner(folder)
    return owned_by(folder, **changes)


def a_day_old(folder: Path) -> Path:
    a_day_ago = time.time() - 25 * 3600
    os.utime(folder, (a_day_ago, a_day_ago))
    return folder


@pytest.mark.parametrize("of_a_search", [False, True], ids=["private", "of a search"])
@pytest.mark.parametrize(
    ("changes", "stays"),
    [
        ({"start_ticks": 1}, False),
        ({"boot_id": "an earlier one"}, False),
        ({}, True),
        ({"host": "another", "boot_id": "another"}, True),
        ({"pid_namespace": "pid:[1]", "start_ticks": 1}, True),
        ({"pid": None, "boot_id": "an earlier one"}, True),
    ],
)
def test_a_folder_stays_unless_its_owner_is_seen_to_be_gone(
    parent: Path, of_a_search: bool, changes: dict[str, object], stays: bool
) -> None:
    folder = unfinished(parent, **changes) if of_a_search else owned_by(make_private_folder(), **changes)
    remove_unfinished(parent)
    remove_abandoned()
    assert folder.exists() is stays


def test_an_unfinished_search_without_an_owner_is_removed_once_it_is_a_day_old(parent: Path) -> None:
    folder = unfinished(parent)
    (folder / "owner.json").unlink()
    remove_unfinished(parent)
    assert folder.exists()
    a_day_old(folder)
    remove_unfinished(parent)
    assert not folder.exists()


def test_another_users_unfinished_search_stays_and_so_does_what_a_link_leads_to(
    parent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_day_old(unfinished(parent, start_ticks=1))
    (parent / ".link-abcdef.part").symlink_to(folder)
    (parent / ".file-abcdef.part").touch()
    a_day_old(parent / ".file-abcdef.part")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        remove_unfinished(parent)
        assert (folder / "code").exists()
    remove_unfinished(parent)
    assert sorted(path.name for path in parent.iterdir()) == [".file-abcdef.part", ".link-abcdef.part"]


@pytest.mark.security("paths")
def test_links_are_neither_believed_nor_followed(parent: Path) -> None:
    elsewhere = parent / "elsewhere"
    elsewhere.mkdir()
    abandoned = owned_by(make_private_folder(), start_ticks=1)
    (elsewhere / "owner.json").write_text((abandoned / "owner.json").read_text())
    (parent / "parlay-link").symlink_to(elsewhere)
    borrowed = make_private_folder()
    (borrowed / "owner.json").unlink()
    (borrowed / "owner.json").symlink_to(elsewhere / "owner.json")
    (abandoned / "link").symlink_to(elsewhere)
    remove_abandoned()
    assert not abandoned.exists()
    assert (elsewhere / "owner.json").exists()
    assert borrowed.exists()


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_killed_processs_folder_is_removed_by_the_next(parent: Path) -> None:
    program = (
        "import sys, os\nfrom pathlib import Path\nfrom orchestrator.launchers import private_tmp as p\n"
        "p._parent = lambda: Path(sys.argv[1])\np.make_private_folder()\nos.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(parent)], check=False)
    [folder] = parent.glob("parlay-*")
    remove_abandoned()
    assert (killed.returncode, folder.exists()) == (-9, False)
