"""Whole searches with real ranks, a real ledger and MLflow; and drivers that are killed or stopped, whose trials take
their step times from a table and end when a test allows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from search_spaces.layouts.layout import LAYOUT_FIELDS, NULLABLE, SETTINGS
from search_spaces.tables.measured_table import read_table
from tests.orchestrator.cli.parlay import Answer, parlay, parlay_here, start, write_search
from tests.orchestrator.service.services import SEARCH, hold, open_gate
from tests.orchestrator.slurm_searches import record_of
from tests.orchestrator.tabled_parlay import COMMAND as TABLED
from trials.files.folders import SearchFolder
from trials.ledger.events import EventKind, SearchState
from trials.ledger.journal import Journal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ONE_TRIAL = ("--set", "search.max_trials=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A search that ran under the Ray launcher with MLflow, its folder and what the command answered."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARLAY_HOME", str(place / "home"))
        answer = parlay("run", write_search(place), "--launcher", "ray", "--json", cwd=place, timeout_s=240)
    assert answer.code == 0, answer.err
    return place, answer.json


@pytest.fixture
def in_its_home(finished, monkeypatch):
    """The finished search, with commands that use its home."""
    monkeypatch.setenv("PARLAY_HOME", str(finished[0] / "home"))
    return finished


def test_run_answers_with_the_best_layout_of_what_was_measured(finished):
    _, answer = finished
    assert answer["schema"] == "parlay.status/1"
    assert (answer["state"], answer["end_reason"]) == ("completed", "max_trials")
    assert answer["trials"] == {"measured": 3, "stopped_early": 0, "failed": 0, "cancelled": 0, "in_flight": 0}
    best, verdict = answer["best"], answer["verdict"]
    assert (verdict["trial"], verdict["ties"]) == (best["trial"], best["ties"])
    assert best["tokens_per_sec_low"] <= best["tokens_per_sec"] <= best["tokens_per_sec_high"]
    assert tuple(best["layout"]) == LAYOUT_FIELDS
    used, spent = answer["budget"]["node_hours_used"], answer["node_time"]
    assert 0 < spent["measured_node_hours"] == pytest.approx(spent["measured_share"] * used)
    assert list(spent["startup_node_hours"]) == ["import", "rendezvous", "build", "first_step", "warmup"]
    assert spent["measured_node_hours"] + sum(spent["startup_node_hours"].values()) < used
    assert (spent["unmeasured_node_hours"], spent["idle_node_hours"]) == (0.0, 0.0)


def test_best_and_status_say_the_same_afterwards(in_its_home):
    place, answer = in_its_home
    best = parlay_here("best", "--json", cwd=place)
    assert best.code == 0
    assert best.json["trial"] == answer["best"]["trial"]
    assert Path(best.json["recipe"], "recipe.yaml").exists()
    assert parlay_here("status", answer["search_id"][:7], "--json", cwd=place).json == answer


def test_the_answer_for_people_names_the_best_and_the_baseline(in_its_home):
    place, answer = in_its_home
    text = parlay_here("status", cwd=place).out
    assert f"best: {answer['best']['trial']}" in text
    assert answer["verdict"]["headline"].lower() in text.lower()
    assert f" % of {answer['budget']['node_hours_used']:.3f} node-hours measured steps; " in text
    assert " % imports, " in text


def test_logs_show_each_ranks_file(in_its_home):
    place, _ = in_its_home
    logs = parlay_here("logs", "t0001", "--json", cwd=place).json
    assert [Path(path).name for path in logs["files"]] == ["rank-00000.log", "rank-00001.log"]
    assert parlay_here("logs", "t0009", cwd=place).code == 4
    refused = parlay_here("logs", "t0001", "--rank", "2", "--json", cwd=place)
    assert (refused.code, refused.json["error"]["message"]) == (4, "there is no log rank-00002.log")
    assert refused.json["error"]["fix"].startswith("leave --rank out")


def test_what_it_measured_is_a_table_and_teaches_the_next_search_on_this_machine(in_its_home):
    place, answer = in_its_home
    name = answer["search_id"]
    exported = parlay_here("export", "--json", cwd=place).json
    assert (exported["rows"], exported["left_out"]) == (answer["num_trials"], {})
    rows = read_table(Path(exported["file"])).require_valid().observations
    ran = [row for row in rows if row.failure_reason is None]
    tokens = 8 * 16  # of a step: sequences and their length
    assert min(row.step_time_s for row in ran) == pytest.approx(tokens / answer["best"]["tokens_per_sec"])
    assert all(row.peak_memory_gib > 0 and row.recorded_duration_s > 0 and row.queue_wait_s >= 0 for row in rows)
    notes = parlay_here("plan", place / "search.yaml", "--json", cwd=place).json["notes"]
    assert notes[0].endswith(f" of 1 earlier search: {name}"), notes


def test_mlflows_own_client_finds_one_parent_and_a_child_a_trial(in_its_home):
    _, answer = in_its_home
    from mlflow.tracking import MlflowClient

    client = MlflowClient(answer["mlflow"]["uri"])
    experiment = client.get_experiment_by_name("parlay")
    runs = client.search_runs(
        [experiment.experiment_id], filter_string=f"tags.`parlay.search_id` = '{answer['search_id']}'"
    )
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = {run.info.run_name.split()[0]: run for run in runs if "mlflow.parentRunId" in run.data.tags}
    assert [run.info.run_id for run in parents] == [answer["mlflow"]["run_id"]]
    assert sorted(children) == ["t0001", "t0002", "t0003"]
    best = children[answer["best"]["trial"]]
    assert best.data.metrics["tokens_per_sec"] == pytest.approx(answer["best"]["tokens_per_sec"])
    assert {*LAYOUT_FIELDS} - {*NULLABLE, SETTINGS} <= set(best.data.params)  # each setting is a parameter by itself
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert 0 < best.data.metrics["system/system_memory_usage_percentage"] <= 100
    assert f"[{answer['best']['trial']}](#/experiments/" in parents[0].data.tags["mlflow.note.content"]
    assert "figures" in [file.path for file in client.list_artifacts(parents[0].info.run_id)]


@pytest.mark.walks
def test_replay_measures_again_and_its_exit_code_is_its_verdict(in_its_home):
    place, answer = in_its_home
    replayed = parlay("replay", answer["search_id"], "--repeats", "1", "--sessions", "1", "--json", cwd=place)
    codes = {"reproduced": 0, "slower": 10, "faster": 11, "inconclusive": 13}
    assert replayed.code == codes[replayed.json["verdict"]], replayed.err
    assert replayed.json["measured"] > 0


@pytest.mark.bad_input(42)
def test_a_replay_of_a_recipe_that_was_edited_is_refused(in_its_home, tmp_path):
    place, answer = in_its_home
    recipe = Path(answer["recipe"], "recipe.yaml")
    text = recipe.read_text()
    try:
        recipe.write_text(text.replace("micro_batch_size", "micro_batch_size", 1) + "\n# faster\nextra: 1\n")
        assert parlay("replay", answer["recipe"], cwd=place).code == 2
    finally:
        recipe.write_text(text)


@pytest.mark.bad_input(44)
def test_a_search_file_edited_afterwards_changes_nothing(in_its_home):
    place, answer = in_its_home
    path = place / "runs" / answer["search_id"] / "search.json"
    text = path.read_text()
    try:
        path.write_text(text.replace('"global_batch_size": 8', '"global_batch_size": 16'))
        assert parlay_here("status", "--json", cwd=place).json == answer
        assert parlay("resume", "--json", cwd=place).json["best"] == answer["best"]
    finally:
        path.write_text(text)


def events(folder: Path) -> list:
    return Journal(SearchFolder(folder).journal).read()


def only_search(place: Path) -> Path:
    [folder] = [path for path in (place / "runs").iterdir() if not path.name.startswith(".")]
    return folder


def wait_for(what, limit_s: float = 150.0):
    """Poll `what` until it is true and return its value; the watched processes are real."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"nothing after {limit_s} s")


def running_attempts(place: Path) -> int:
    """Number of attempts that run or have run; a driver on a busy machine may see a short one only at its end."""
    if not (place / "runs").exists():
        return 0
    found = [path for path in (place / "runs").iterdir() if not path.name.startswith(".")]
    ran = (EventKind.ATTEMPT_RUNNING, EventKind.ATTEMPT_ENDED)
    return len({(e.data["trial"], e.data["attempt"]) for e in events(found[0]) if e.kind in ran}) if found else 0


def alive_ranks(folder: Path) -> list[int]:
    """Processes whose command line names this search."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"trials.train" in words and any(str(folder).encode() in word for word in words):
            pids.append(int(path.parent.name))
    return pids


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
    except AssertionError as error:
        driver.kill()
        raise AssertionError(f"{error}; the driver said: {driver.communicate()}") from None
    return driver


def submitted(place: Path, *words: str) -> Answer:
    done = start("submit", "search.yaml", *words, "--json", cwd=place, command=TABLED)
    answer = Answer(done.wait(timeout=120), done.stdout.read(), done.stderr.read())
    assert answer.code == 0, answer.err
    return answer


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


def test_under_ray_sigterm_stops_with_its_own_code_and_an_object_and_leaves_no_rank(place):
    driver = begun(place, "--launcher", "ray", "--json")
    driver.terminate()
    out, err = driver.communicate(timeout=150)
    assert driver.returncode == 75, err
    assert json.loads(out)["search_id"] == only_search(place).name
    assert "parlay resume" in err
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


def test_a_terminal_that_has_gone_ends_no_search(place):
    driver = start("run", "search.yaml", *ONE_TRIAL, "--json", cwd=place, command=TABLED)
    driver.stderr.readline()
    driver.stderr.close()
    assert json.loads(driver.stdout.read())["trials"]["measured"] == 1
    assert driver.wait(timeout=90) == 0


def test_a_submitted_driver_takes_nothing_from_the_working_directory(place):
    (place / "secrets.py").write_text("raise SystemExit('a stray file was run')")
    submitted(place, *ONE_TRIAL)
    folder = SearchFolder(only_search(place))
    wait_for(lambda: record_of(folder).state.is_ended)
    assert record_of(folder).state is SearchState.COMPLETED


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
    answer = submitted(place)
    os.kill(answer.json["pid"], 0)
    wait_for(lambda: running_attempts(place) >= 2)
    cancelled = parlay("cancel", answer.json["search_id"], "--json", cwd=place)
    assert cancelled.code == 0, cancelled.err
    assert cancelled.json["cancelled"] == ["t0002"]
    assert cancelled.json["unreached"] == []
    assert not alive_ranks(only_search(place))
    status = parlay_here("status", "--json", cwd=place).json
    assert (status["state"], status["reasons"]) == ("cancelled", {"cancelled_by_user": 1})


def test_a_search_nobody_drives_can_be_cancelled(place):
    driver = begun(place)
    driver.kill()
    driver.communicate()
    folder = only_search(place)
    for file in Path(os.environ["PARLAY_HOME"]).glob("ledger.db*"):
        file.unlink()  # the folder alone is enough
    cancelled = parlay("cancel", folder, "--json", cwd=place)
    assert cancelled.code == 0, cancelled.err
    assert parlay_here("status", "--json", cwd=place).json["state"] == "cancelled"
    assert not alive_ranks(only_search(place))


@pytest.mark.fault(33)
def test_an_mlflow_that_is_down_changes_nothing(place):
    write_search(place, SEARCH.replace("{enabled: false}", '{mlflow_uri: "http://127.0.0.1:9"}'))
    open_gate(place)
    driver = start("run", "search.yaml", "--json", cwd=place, command=TABLED)
    out, err = driver.communicate(timeout=240)
    assert driver.returncode == 0, err
    assert json.loads(out)["trials"]["measured"] == 4
    assert "MLflow" in err
