"""Submission of searches: several files at once, and drivers that outlive the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import submit
from orchestrator.cli.endings import is_whole_process
from orchestrator.cli.submit import can_fork
from search_spaces.errors import ExternalError
from tests.orchestrator.cli.parlay import environment, parlay, parlay_here
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from tests.orchestrator.slurm_searches import record_of, until
from trials.files.folders import SearchFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

BAD_SEARCH = TABLE_SEARCH.replace("sampler: grid", "sampler: gird")


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    """Two search files of simulated searches."""
    first = write_simulated_search(tmp_path, OK, OUT_OF_MEMORY)
    second = tmp_path / "other.yaml"
    second.write_text(TABLE_SEARCH.replace("name: table", "name: other"))
    return first, second


@pytest.mark.processes
def test_several_files_are_submitted_with_one_object(files, tmp_path):
    answer = parlay("submit", *files, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    searches = answer.json["searches"]
    assert [search["search_id"].rpartition("-")[0] for search in searches] == ["table", "other"]
    assert len({search["pid"] for search in searches}) == 2
    assert answer.json["refused"] == []
    folders = [SearchFolder(Path(search["folder"])) for search in searches]
    until(lambda: all(record_of(folder).state.is_ended for folder in folders), bool)


def test_the_mistakes_of_all_files_are_told_at_once_and_nothing_is_submitted(files, tmp_path):
    files[1].write_text(BAD_SEARCH)
    error = parlay_here("submit", *files, "--json", cwd=tmp_path).json["error"]
    assert (error["file"], error["key"]) == (str(files[1]), "search.sampler")
    files[0].write_text(BAD_SEARCH)
    for more in ((), ("--cron",)):  # with a place in the file, and without one
        answer = parlay_here("submit", *files, *more, "--json", cwd=tmp_path)
        error = answer.json["error"]
        assert (answer.code, [problem["file"] for problem in (error, *error["others"])]) == (2, [*map(str, files)])
    assert not (tmp_path / "runs").exists()


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


def submitted_with(drive: str, file: Path, *options: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """A submission whose driver, once forked, does this."""
    program = (
        "import os, sys\nfrom orchestrator.cli import main, submit\n"
        f"def drive(started):\n{drive}\nsubmit.drive_here = drive\n"
        "sys.argv[1:] = ['submit', *sys.argv[1:], '--no-service', '--json']\nsys.exit(main.main())"
    )
    command = [sys.executable, "-P", "-c", program, str(file), *options]
    return subprocess.run(command, cwd=file.parent, env=environment(), capture_output=True, text=True, **how)


@pytest.mark.processes
def test_the_driver_is_a_fork_in_a_session_of_its_own_with_its_log_as_output(files):
    reader, writer = os.pipe()
    drive = (
        "    from orchestrator.lifecycle.lock import acquire_search\n"
        "    with acquire_search(started.folder, started.ledger_url):\n"
        "        seen = [os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 1, 2)]\n"
        f"        print([os.getpid() == os.getsid(0), seen, os.path.exists('/proc/self/fd/{writer}')])"
    )
    done = submitted_with(drive, files[0], "--quiet", pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 1) == b""  # the driver has not kept it, or has ended
    os.close(reader)
    log = Path(json.loads(done.stdout)["folder"]) / "driver.log"
    until(log.read_text, lambda text: text.endswith("\n"))
    assert log.read_text() == f"{[True, ['/dev/null', str(log), str(log)], False]}\n"


@pytest.mark.processes
def test_a_driver_that_ends_before_it_holds_the_search_is_told_with_its_last_words(files):
    done = submitted_with("    raise ValueError('no way')", files[0])
    assert done.returncode == 6
    error = json.loads(done.stdout)["error"]
    assert "ended with status 1" in error["message"]
    assert "no way" in error["message"]
    assert "parlay resume" in error["fix"]


def test_only_a_process_of_its_own_with_one_thread_is_forked(monkeypatch):
    monkeypatch.setattr(submit, "_HAVE_THREADS", frozenset())
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert not can_fork()
    token = is_whole_process.set(True)
    try:
        assert can_fork()
        for place, name, value in (
            (threading, "active_count", lambda: 2),
            (submit, "_HAVE_THREADS", frozenset({"sys"})),
            (sys, "path", [os.getcwd()]),
        ):
            with monkeypatch.context() as changed:
                changed.setattr(place, name, value)
                assert not can_fork(), name
    finally:
        is_whole_process.reset(token)
