"""Submission of searches: several files at once, and drivers that outlive the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrator.cli import detached
from orchestrator.cli.detached import can_fork, is_whole_process, start_detached
from search_spaces.errors import ExternalError
from tests.orchestrator.cli.parlay import COMMAND, environment, parlay, parlay_here
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.journal import Journal, search_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BAD_SEARCH = TABLE_SEARCH.replace("sampler: grid", "sampler: gird")


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """Two search files of simulated searches."""
    first = write_simulated_search(tmp_path, OK, OUT_OF_MEMORY)
    second = tmp_path / "other.yaml"
    second.write_text(TABLE_SEARCH.replace("name: table", "name: other"))
    return first, second


def has_ended(folder: Path) -> bool:
    search = SearchFolder(folder)
    record = search_of(search.journal, search.search_id, Journal(search.journal).read())
    return record is not None and record.state.is_ended


def wait_for_the_end_of(*folders: str) -> None:
    deadline = time.monotonic() + 120
    while not all(has_ended(Path(folder)) for folder in folders):
        assert time.monotonic() < deadline, [Path(folder, "driver.log").read_text() for folder in folders]
        time.sleep(0.05)


@pytest.mark.processes
def test_several_files_are_submitted_with_one_object(files, tmp_path):
    answer = parlay("submit", *files, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    searches = answer.json["searches"]
    assert [search["search_id"].rpartition("-")[0] for search in searches] == ["table", "other"]
    assert len({search["pid"] for search in searches}) == 2
    assert answer.json["refused"] == []
    wait_for_the_end_of(*(search["folder"] for search in searches))


@pytest.mark.processes
def test_several_files_are_submitted_with_a_line_each(files, tmp_path):
    answer = parlay("submit", *files, cwd=tmp_path)
    assert answer.code == 0, answer.err
    first, second = answer.out.splitlines()
    assert first.startswith("search table-")
    assert second.startswith("search other-")
    wait_for_the_end_of(*map(str, (tmp_path / "runs").iterdir()))


def test_a_mistake_in_any_file_is_named_with_its_file_and_nothing_is_submitted(files, tmp_path):
    _, second = files
    second.write_text(BAD_SEARCH)
    answer = parlay_here("submit", *files, "--json", cwd=tmp_path)
    assert answer.code == 2
    error = answer.json["error"]
    assert (error["file"], error["key"]) == (str(second), "search.sampler")
    assert not (tmp_path / "runs").exists()


def test_the_mistakes_of_all_files_are_told_at_once(files, tmp_path):
    for file in files:
        file.write_text(BAD_SEARCH)
    error = parlay_here("submit", *files, "--json", cwd=tmp_path).json["error"]
    assert [problem["file"] for problem in (error, *error["others"])] == [*map(str, files)]


def test_a_mistake_without_a_place_is_named_with_its_file(files, tmp_path):
    error = parlay_here("submit", *files, "--cron", "--json", cwd=tmp_path).json["error"]
    assert [problem["file"] for problem in (error, *error["others"])] == [*map(str, files)]


def test_a_search_that_gets_no_driver_does_not_stop_the_others(files, tmp_path, monkeypatch):
    def start(started, in_ray):
        if started.spec.name == "table":
            raise ExternalError("no more processes")
        return 17

    monkeypatch.setattr("orchestrator.cli.submit._start_driver", start)
    answer = parlay_here("submit", *files, "--no-service", "--json", cwd=tmp_path)
    assert answer.code == 6
    assert answer.json["refused"] == [{"file": str(files[0]), "message": "no more processes"}]
    assert [search["pid"] for search in answer.json["searches"]] == [17]


def test_several_files_can_be_tried_dry(files, tmp_path):
    answer = parlay_here("submit", *files, "--dry-run", "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert [search["spec"]["name"] for search in answer.json["searches"]] == ["table", "other"]
    refused = parlay_here("submit", *files, "--dry-run", "--scripts", tmp_path / "x", "--json", cwd=tmp_path)
    assert refused.code == 2
    assert refused.json["error"]["key"] == "--scripts"
    assert not (tmp_path / "runs").exists()


@pytest.mark.processes
def test_the_driver_is_a_fork_in_a_session_of_its_own_with_its_log_as_output(files, tmp_path):
    reader, writer = os.pipe()
    program = (
        "import os, sys, time\nfrom orchestrator.cli import main, submit\n"
        "def drive(started, as_json):\n"
        "    from orchestrator.lifecycle.lock import acquire_search\n"
        "    with acquire_search(started.folder, started.ledger_url):\n"
        "        seen = {fd: os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 1, 2)}\n"
        f"        kept = os.path.exists('/proc/self/fd/{writer}')\n"
        "        print([os.getpid() == os.getsid(0), list(seen.values()), kept])\n"
        "submit.drive_here = drive\n"
        "main.main(['submit', sys.argv[1], '--no-service', '--quiet', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(files[0])],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        pass_fds=[writer],
    )
    os.close(writer)
    assert os.read(reader, 1) == b""  # the driver has not kept it, or has ended
    os.close(reader)
    answer = json.loads(done.stdout)
    log = Path(answer["folder"]) / "driver.log"
    deadline = time.monotonic() + 60
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert log.read_text() == f"{[True, ['/dev/null', str(log), str(log)], False]}\n"


@pytest.mark.processes
def test_a_driver_that_ends_before_it_holds_the_search_is_told_with_its_last_words(files, tmp_path):
    program = (
        "import sys\nfrom orchestrator.cli import main, submit\n"
        "def drive(started, as_json):\n    raise ValueError('no way')\n"
        "submit.drive_here = drive\n"
        "main.main(['submit', sys.argv[1], '--no-service', '--json'])"
    )
    command = [sys.executable, "-P", "-c", program, str(files[0])]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 6
    error = json.loads(done.stdout)["error"]
    assert "ended with status 1" in error["message"]
    assert "no way" in error["message"]
    assert "parlay resume" in error["fix"]


def test_only_a_process_of_its_own_with_one_thread_is_forked(monkeypatch):
    monkeypatch.setattr(detached, "_HAVE_THREADS", frozenset())
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert not can_fork()
    token = is_whole_process.set(True)
    try:
        assert can_fork()
        with monkeypatch.context() as with_thread:
            with_thread.setattr(threading, "active_count", lambda: 2)
            assert not can_fork()
        with monkeypatch.context() as with_package:
            with_package.setattr(detached, "_HAVE_THREADS", frozenset({"sys"}))
            assert not can_fork()
        with monkeypatch.context() as from_here:
            from_here.setattr(sys, "path", [os.getcwd()])
            assert not can_fork()
    finally:
        is_whole_process.reset(token)


@pytest.mark.processes
def test_a_command_may_be_started_anew(tmp_path):
    started = start_detached([*COMMAND, "--version"], tmp_path / "log")
    deadline = time.monotonic() + 60
    while (status := started.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert status == 0
    assert (tmp_path / "log").read_text().startswith("parlay ")
