"""What lies and runs beside on a machine: load, imports in a thread, programs without end, private folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.common import background_imports, private_tmp
from orchestrator.common.bounded_output import bounded_output
from orchestrator.common.machine_load import describe_load
from orchestrator.common.private_tmp import make_private_folder, remove_abandoned, remove_unfinished, write_owner
from slurm.sandbox.daemons import running_pids
from tests.orchestrator.cli.parlay import command_line
from tests.trials.fork_server.servers import until


@pytest.mark.parametrize(
    ("load", "cpus", "is_busy"), [(0.0, 2, False), (0.4, 2, False), (0.5, 2, True), (7.9, 32, False)]
)
def test_a_machine_is_busy_from_a_quarter_of_its_cpus_on(load, cpus, is_busy):
    assert (describe_load(load, cpus) is not None) is is_busy


@pytest.fixture(autouse=True)
def _no_imports_yet(monkeypatch):
    monkeypatch.setattr(background_imports, "_thread", None)


def test_the_imports_are_made_in_order_and_waited_for():
    gate, made = threading.Event(), []
    background_imports.start([gate.wait, lambda: made.append("first"), lambda: made.append("second")])
    assert made == []
    gate.set()
    background_imports.wait()
    assert made == ["first", "second"]


def test_an_import_that_fails_is_left_to_who_uses_it():
    made = []
    background_imports.start([lambda: [][0], lambda: made.append("second")])
    background_imports.wait()
    assert made == ["second"]


@pytest.mark.processes
@pytest.mark.security("contents")
@pytest.mark.parametrize(
    ("program", "limit_s", "error"),
    [
        ("exec yes {word}", 60, ValueError),
        ("yes {word} & exit 0", 60, ValueError),
        ("tail -f /dev/null {word}", 0.2, subprocess.TimeoutExpired),
        (r"printf '\377'", 60, ValueError),
    ],
)
def test_an_answer_without_end_ends_with_all_that_it_started(tmp_path, program, limit_s, error):
    with pytest.raises(error):
        bounded_output(["sh", "-c", program.format(word=tmp_path)], os.environ, limit_s)
    # Who was killed may take a moment to be gone.
    until(lambda: not [pid for pid in running_pids() if os.fsencode(tmp_path) in command_line(pid)])


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
        "import sys, os\nfrom pathlib import Path\nfrom orchestrator.common import private_tmp as p\n"
        "p._parent = lambda: Path(sys.argv[1])\np.make_private_folder()\nos.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(parent)], check=False)
    [folder] = parent.glob("parlay-*")
    remove_abandoned()
    assert (killed.returncode, folder.exists()) == (-9, False)
