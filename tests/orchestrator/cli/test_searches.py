"""Whole searches with real ranks, a real ledger and MLflow; and drivers that are killed or stopped, whose trials take
their step times from a table and end when a test allows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from orchestrator.search.lease import current_lease
from slurm.sandbox.daemons import running_pids
from tests.kit import ABSENT, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import command_line, parlay, parlay_here, start
from tests.orchestrator.service.services import SEARCH, hold, open_gate
from tests.orchestrator.slurm_searches import record_of, until
from tests.orchestrator.tabled_parlay import COMMAND as TABLED
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind
from trials.ledger.journal import Journal

T = TypeVar("T")

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search that ran under the Ray launcher with MLflow, its folder and what the command answered."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(place / "home"))
        answer = parlay("run", search_file(place, TINY_SEARCH), "--launcher", "ray", "--json", cwd=place, timeout_s=240)
    assert answer.code == 0, answer.err
    return place, answer.json


@pytest.fixture
def in_its_home(finished, monkeypatch):
    """The finished search, with commands that use its home."""
    monkeypatch.setenv("PARLAY_HOME", str(finished[0] / "home"))
    return finished


def test_run_answers_with_the_best_layout_of_what_was_measured_and_best_and_status_say_the_same(in_its_home):
    place, answer = in_its_home
    assert (answer["state"], answer["end_reason"]) == ("completed", "max_trials")
    assert answer["trials"] == {"measured": 3, "stopped_early": 0, "failed": 0, "cancelled": 0, "in_flight": 0}
    best, verdict = answer["best"], answer["verdict"]
    assert (verdict["trial"], verdict["ties"]) == (best["trial"], best["ties"])
    assert best["tokens_per_sec_low"] <= best["tokens_per_sec"] <= best["tokens_per_sec_high"]
    used, spent = answer["budget"]["node_hours_used"], answer["node_time"]
    assert 0 < spent["measured_node_hours"] == pytest.approx(spent["measured_share"] * used)
    assert list(spent["startup_node_hours"]) == ["import", "rendezvous", "build", "first_step", "warmup"]
    assert spent["measured_node_hours"] + sum(spent["startup_node_hours"].values()) < used
    told = parlay_here("best", "--json", cwd=place)
    assert (told.code, told.json["trial"]) == (0, best["trial"])
    assert Path(told.json["recipe"], "recipe.yaml").exists()
    assert parlay_here("status", answer["search_id"][:7], "--json", cwd=place).json == answer
    logs = parlay_here("logs", "t0001", "--json", cwd=place).json
    assert [Path(path).name for path in logs["files"]] == ["rank-00000.log", "rank-00001.log"]
    assert parlay_here("logs", "t0001", "--rank", "2", "--json", cwd=place).code == 4


@pytest.mark.bad_input(42, 44)
def test_files_edited_afterwards_change_nothing(in_its_home):
    place, answer = in_its_home
    recipe, described = Path(answer["recipe"], "recipe.yaml"), place / "runs" / answer["search_id"] / "search.json"
    texts = {path: path.read_text() for path in (recipe, described)}
    try:
        recipe.write_text(texts[recipe] + "\n# faster\nextra: 1\n")
        assert parlay_here("replay", answer["recipe"], cwd=place).code == 2
        described.write_text(texts[described].replace('"global_batch_size": 8', '"global_batch_size": 16'))
        assert parlay_here("status", "--json", cwd=place).json == answer
        assert parlay("resume", "--json", cwd=place).json["best"] == answer["best"]
    finally:
        for path, text in texts.items():
            path.write_text(text)


def events(folder: Path) -> list:
    return Journal(SearchFolder(folder).journal).read()


def searches(place: Path) -> list[Path]:
    return [path for path in place.glob("runs/*") if not path.name.startswith(".")]


def only_search(place: Path) -> Path:
    [folder] = searches(place)
    return folder


def wait_for(what: Callable[[], T]) -> T:
    return until(what, bool, 150.0)


def running_attempts(place: Path) -> int:
    """Number of attempts that run or have run; a driver on a busy machine may see a short one only at its end."""
    ran = (EventKind.ATTEMPT_RUNNING, EventKind.ATTEMPT_ENDED)
    seen = [event for folder in searches(place) for event in events(folder) if event.kind in ran]
    return len({(event.data["trial"], event.data["attempt"]) for event in seen})


def alive_ranks(folder: Path) -> list[int]:
    """Processes whose command line names this search."""
    lines = {pid: command_line(pid).split(b"\0") for pid in running_pids()}
    ranks = {pid: words for pid, words in lines.items() if b"trials.train" in words}
    return [pid for pid, words in ranks.items() if any(str(folder).encode() in word for word in words)]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Folder with a search file whose baseline's trial ends at once, and the others only after `open_gate`."""
    hold(tmp_path, monkeypatch)
    return tmp_path


def begun(place: Path, *words: str | Path, running: int = 2) -> subprocess.Popen[str]:
    """A driver of that search, once this many attempts run."""
    driver = start("run", "search.yaml", *words, cwd=place, command=TABLED)
    try:
        wait_for(lambda: running_attempts(place) >= running)
    except AssertionError:
        driver.kill()
        print(driver.communicate())
        raise
    return driver


def test_killed_in_the_middle_and_resumed_the_search_has_the_same_trials_none_twice(place):
    driver = begun(place)
    driver.kill()
    driver.communicate()
    folder = only_search(place)
    before = events(folder)
    wait_for(lambda: not alive_ranks(folder))
    open_gate(place)
    answer = parlay("resume", folder.name, "--json", cwd=place)
    assert answer.code == 0, answer.err
    after = events(folder)
    assert [e.data for e in after[: len(before)]] == [e.data for e in before]
    proposed = [e.data["layout"] for e in after if e.kind is EventKind.TRIAL_PROPOSED]
    assert len({json.dumps(layout) for layout in proposed}) == len(proposed) == 4
    assert answer.json["trials"]["measured"] == 4
    assert answer.json["reasons"] == {}


@pytest.mark.fault(14)
def test_a_search_that_is_driven_is_not_driven_twice(place):
    driver = begun(place)
    try:
        second = parlay_here("resume", "--json", cwd=place)
        assert second.code == 5
        assert str(driver.pid) in second.json["error"]["message"]
    finally:
        driver.terminate()
        driver.communicate()
    assert driver.returncode == 75
    wait_for(lambda: not alive_ranks(only_search(place)))


@pytest.mark.fault(16)
@pytest.mark.parametrize("launcher", [pytest.param("ray", marks=pytest.mark.walks), "local"])
def test_a_second_ctrl_c_stops_at_once_and_leaves_no_rank(place, launcher):
    driver = begun(place, "--launcher", launcher, "--json")
    driver.send_signal(signal.SIGINT)
    wait_for(lambda: "ctrl-C again" in driver.stderr.readline())
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=150)
    assert driver.returncode == 130
    wait_for(lambda: not alive_ranks(only_search(place)))


@pytest.mark.fault(16)
def test_ctrl_c_lets_the_running_trial_finish_and_resume_goes_on(place):
    driver = begun(place)
    driver.send_signal(signal.SIGINT)
    wait_for(lambda: "ctrl-C again" in driver.stderr.readline())
    open_gate(place)
    _, err = driver.communicate(timeout=150)
    assert driver.returncode == 130
    assert "parlay resume" in err
    status = parlay_here("status", "--json", cwd=place).json
    assert (status["state"], status["trials"]["in_flight"], status["trials"]["measured"]) == ("running", 0, 2)
    assert parlay("resume", "--json", cwd=place).json["trials"]["measured"] == 4


def test_a_submitted_search_outlives_its_command_and_can_be_cancelled(place):
    command = start("submit", "search.yaml", "--json", cwd=place, command=TABLED)
    answer = json.loads(command.communicate(timeout=120)[0])
    os.kill(answer["pid"], 0)
    wait_for(lambda: running_attempts(place) >= 2)
    cancelled = parlay("cancel", answer["search_id"], "--json", cwd=place)
    assert cancelled.code == 0, cancelled.err
    assert cancelled.json["cancelled"] == ["t0002"]
    assert cancelled.json["unreached"] == []
    assert not alive_ranks(only_search(place))
    status = parlay_here("status", "--json", cwd=place).json
    assert (status["state"], status["reasons"]) == ("cancelled", {"cancelled_by_user": 1})


@pytest.mark.fault(33)
def test_an_mlflow_that_is_down_changes_nothing(place):
    search_file(place, SEARCH, tracking={"enabled": ABSENT, "mlflow_uri": "http://127.0.0.1:9"})
    open_gate(place)
    driver = start("run", "search.yaml", "--json", cwd=place, command=TABLED)
    out, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err
    assert json.loads(out)["trials"]["measured"] == 4
    assert "MLflow" in err


def test_an_actor_drives_and_a_signal_has_it_stop_for_another_driver(tmp_path):
    command = start("run", search_file(tmp_path, SEARCH, search={"max_trials": 50}), "--executor", "ray", cwd=tmp_path)
    wait_for(lambda: running_attempts(tmp_path))
    folder = SearchFolder(only_search(tmp_path))
    lease = current_lease(folder)
    assert lease is not None
    assert lease.pid != command.pid
    command.send_signal(signal.SIGTERM)
    _, err = command.communicate(timeout=180)
    assert command.returncode == 75, err
    assert not record_of(folder).state.is_ended
    assert parlay("cancel", str(folder.path), cwd=tmp_path).code == 0
