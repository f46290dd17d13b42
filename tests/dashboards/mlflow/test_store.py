"""Checks of MLflow's store before the first trial, concurrent processes, and repeated synchronisation."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dashboards.mlflow.runs import NOTE
from dashboards.mlflow.sync import REPORT_PAUSE_S, MlflowSync
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.dashboards.mlflow.mlflow_content import everything, runs_by_name, without_ids
from tests.dashboards.searches import SEARCH_ID, START, SearchUnderTest, ended_search, search_folder
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first use of a fresh MLflow database takes seconds


@pytest.mark.bad_input(36)
def test_a_deleted_experiment_is_said_before_the_first_trial_with_the_way_back(client, home, request):
    experiment = client.get_experiment_by_name(request.node.name)
    client.delete_experiment(experiment.experiment_id)
    with pytest.raises(InputError) as caught:
        MlflowSync(None, request.node.name, home).check()
    problem = caught.value.problems[0]
    assert problem.key == "tracking.experiment"
    assert f"restore --experiment-id {experiment.experiment_id}" in problem.fix


@pytest.mark.bad_input(36)
def test_an_experiment_without_leave_to_write_is_said_before_the_first_trial(sync, monkeypatch):
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import PERMISSION_DENIED

    def refuse(*_args):
        raise MlflowException("Permission denied", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(sync._store._client, "set_experiment_tag", refuse)
    with pytest.raises(InputError, match="Permission denied"):
        sync.check()


def test_a_database_of_another_mlflow_is_said_before_the_first_trial_with_the_command_that_helps(tmp_path):
    assert MlflowSync(None, "parlay", tmp_path).check() is None
    shutil.copy(tmp_path / "mlflow.db", tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    with pytest.raises(InputError, match="out-of-date") as caught:
        MlflowSync(f"sqlite:///{tmp_path}/old.db", "parlay", tmp_path / "home").check()
    problem = caught.value.problems[0]
    assert problem.key == "tracking.mlflow_uri"
    assert "mlflow db upgrade" in problem.fix


def test_a_store_known_to_be_writable_is_not_asked_again_and_one_out_of_reach_hinders_no_search(home, request, capfd):
    assert MlflowSync(None, request.node.name, home).check() is None
    again = MlflowSync(None, request.node.name, home)
    assert again.check() is None
    assert "_client" not in vars(again._store)
    assert capfd.readouterr() == ("", "")
    words = MlflowSync("http://user:secret@127.0.0.1:9", "parlay", home).check()
    assert "is unreachable" in words
    assert "secret" not in words


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_fresh_store_may_be_opened_by_several_processes_at_once(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dashboards.mlflow.sync import MlflowSync\n"
        "sys.exit(MlflowSync(None, 'together', Path(sys.argv[1])).check())"
    )
    started = []
    for name in ("one", "other"):
        place = tmp_path / name  # MLflow's own lock lies in the temporary directory, which nodes do not share
        place.mkdir()
        command = [sys.executable, "-c", program, str(tmp_path / "home")]
        started.append(subprocess.Popen(command, env={**os.environ, "TMPDIR": str(place)}, stderr=subprocess.PIPE))
    endings = [(process.communicate()[1], process.returncode) for process in started]
    assert endings == [(b"", 0)] * 2


def test_sending_again_changes_nothing(sync, client, home, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search, num_steps=400)  # more points than one batch takes
    sync.sync(search, folder)
    before = everything(client, request.node.name)
    sync.sync(search, folder)
    MlflowSync(None, request.node.name, home).sync(search, folder)
    assert everything(client, request.node.name) == before


def test_a_search_sent_live_and_one_sent_after_its_end_are_the_same(home, tmp_path, client, request):
    live, late = (f"{request.node.name}-{when}" for when in ("live", "late"))
    search = ended_search()
    folder = search_folder(tmp_path, search.record)
    sync = MlflowSync(None, live, home)
    for record in search.records:
        sync.sync(record, folder)
    MlflowSync(None, late, home).sync(search.record, folder)
    assert without_ids(everything(client, live)) == without_ids(everything(client, late))


@pytest.mark.walks
@pytest.mark.fault(34)
def test_a_lost_reply_makes_no_second_run_and_no_second_point(sync, client, tmp_path, request, monkeypatch):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    for call in ("create_run", "log_batch", "set_terminated"):
        _lose_every_second_reply(monkeypatch, sync._store._client, call)
    while sync.unsent(search):
        try:
            sync.sync(search, folder)
        except ConnectionError:
            continue
    monkeypatch.undo()
    disturbed = without_ids(everything(client, request.node.name))
    quiet = MlflowSync(None, request.node.name + "-quiet", Path(folder.path.parent))
    quiet.sync(search, folder)
    from mlflow.tracking import MlflowClient

    assert disturbed == without_ids(everything(MlflowClient(quiet.uri), request.node.name + "-quiet"))


def _lose_every_second_reply(monkeypatch, client, call: str) -> None:
    original, calls = getattr(client, call), iter(range(10**6))

    def losing(*args, **kwargs):
        answer = original(*args, **kwargs)
        if next(calls) % 2:
            raise ConnectionError(f"the reply to {call} was lost")
        return answer

    monkeypatch.setattr(client, call, losing)


def test_a_note_a_person_wrote_is_left_alone(sync, client, home, tmp_path, request):
    search = SearchUnderTest()
    trial = search.start(Layout())
    folder = search_folder(tmp_path, search.record)
    sync.sync(search.record, folder)
    runs = runs_by_name(client, request.node.name)
    for run in runs.values():
        client.set_tag(run.info.run_id, NOTE, "see the ticket")
    search.fail(trial, FailureReason.GPU_OOM)
    search.end()
    folder.report.write_text("written later")
    for later in (sync, MlflowSync(None, request.node.name, home)):  # one that remembers its own, and one that asks
        later.sync(search.record, folder)
        found = runs_by_name(client, request.node.name)
        assert {run.data.tags[NOTE] for run in found.values()} == {"see the ticket"}
        assert later.unsent(search.record) == []


def test_a_run_begins_at_the_launch_with_its_parameters_and_is_completed_by_whoever_sends_next(
    sync, client, home, tmp_path, request
):
    search = SearchUnderTest()
    search.propose("t0001", Layout())
    folder = search_folder(tmp_path, search.record)
    sync.sync(search.record, folder)
    assert (set(runs_by_name(client, request.node.name)), sync.unsent(search.record)) == ({SEARCH_ID}, [])
    search._start_attempt("t0001", "a1")
    sync.sync(search.record, folder)
    begun = runs_by_name(client, request.node.name)["t0001"]
    assert (begun.info.status, begun.data.params["micro_batch_size"], begun.data.metrics) == ("RUNNING", "1", {})
    search.measure("t0001", 123_456.789)
    assert sync.unsent(search.record) == ["t0001"]
    MlflowSync(None, request.node.name, home).sync(search.record, folder)
    ended = runs_by_name(client, request.node.name)["t0001"]
    assert (ended.info.run_id, ended.info.status) == (begun.info.run_id, "FINISHED")
    assert ended.data.metrics["tokens_per_sec"] == 123_460, "numbers are rounded"


def test_a_run_that_was_created_twice_is_ended_and_counted_once(sync, client, home, tmp_path, request):
    search = SearchUnderTest()
    name = search.start(Layout())
    folder = search_folder(tmp_path, search.record)
    sync.sync(search.record, folder)
    child = runs_by_name(client, request.node.name)[name]
    tags = child.data.tags | {"mlflow.runName": "twice"}
    client.create_run(child.info.experiment_id, child.info.start_time + 1, tags, "twice")
    search.measure(name, 1.0)
    MlflowSync(None, request.node.name, home).sync(search.record, folder)
    found = runs_by_name(client, request.node.name)
    assert (found[name].info.status, found["twice"].info.status) == ("FINISHED", "KILLED")
    assert found["twice"].data.tags["parlay.kind"] == "duplicate"


def test_roles_are_those_of_now_and_ties_are_told_at_the_end(sync, client, tmp_path, request):
    search = SearchUnderTest({"name": "tiny", "baseline": Layout().to_json()})
    one, two, three = (search.start(Layout(grad_accum_steps=8 // size, micro_batch_size=size)) for size in (1, 2, 4))
    zero = search.start(Layout(grad_accum_steps=1))
    folder = search_folder(tmp_path, search.record)

    def roles() -> dict[str, str | None]:
        sync.sync(search.record, folder)
        found = runs_by_name(client, request.node.name)
        return {name: run.data.tags.get("parlay.role") for name, run in found.items() if name != SEARCH_ID}

    search.measure(one, 1.0)
    search.best(one)
    assert roles() == {one: "best", two: None, three: None, zero: "baseline"}
    for name, speed in ((two, 2.0), (three, 1.99), (zero, 5.0)):
        search.measure(name, speed)
    search.best(two)
    search.measure(search.start(search.record.trial(two).layout, "repeat"), 2.0)
    assert roles() == {one: None, two: "best", three: None, zero: "baseline", "t0005": "repeat"}
    search.measure(search.start(search.record.trial(three).layout, "repeat"), 1.99)
    search.end()
    assert roles()[three] == "tie"


def test_a_recipe_made_after_the_end_is_still_sent(sync, client, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    sync.sync(search, folder)
    folder.recipe.mkdir()
    (folder.recipe / "recipe.yaml").write_text("schema: parlay.recipe/1\n")
    sync.sync(search, folder)
    parent = runs_by_name(client, request.node.name)[SEARCH_ID]
    assert parent.data.tags["parlay.recipe"] == str(folder.recipe)
    assert [file.path for file in client.list_artifacts(parent.info.run_id, "recipe")] == ["recipe/recipe.yaml"]


def test_a_server_that_takes_no_large_files_has_all_else_and_the_report_once_it_does(
    sync, client, home, tmp_path, request, monkeypatch
):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_text("the report")
    log_artifacts = sync._store._client.log_artifacts

    def refuse_pages(run_id: str, sent: str) -> None:
        if Path(sent, "report.html").exists():
            raise OSError("413 Request Entity Too Large")
        log_artifacts(run_id, sent)

    monkeypatch.setattr(sync._store._client, "log_artifacts", refuse_pages)
    report = sync.sync(search, folder)
    assert report.unread == ("report.html: OSError: 413 Request Entity Too Large",)
    parent = runs_by_name(client, request.node.name)[SEARCH_ID]
    assert parent.info.status == "FINISHED"
    assert MlflowSync(None, request.node.name, home).sync(search, folder).unread == ()
    assert "report.html" in [file.path for file in client.list_artifacts(parent.info.run_id)]
    later = MlflowSync(None, request.node.name, home)
    monkeypatch.setattr(later._store._client, "log_artifacts", pytest.fail)
    later.sync(search, folder)


def test_a_running_search_sends_its_report_every_ten_minutes_and_an_ended_one_each_new_one(
    sync, client, tmp_path, request
):
    search = SearchUnderTest()
    folder = search_folder(tmp_path, search.record)

    def sent(written_at: float) -> str:
        folder.report.write_text(f"as of {written_at}")
        os.utime(folder.report, (written_at, written_at))
        sync.sync(search.record, folder)
        parent = runs_by_name(client, request.node.name)[SEARCH_ID]
        return Path(client.download_artifacts(parent.info.run_id, "report.html", str(tmp_path))).read_text()

    now = START
    assert sent(now) == sent(now + REPORT_PAUSE_S - 1) == f"as of {now}"
    assert sent(now + REPORT_PAUSE_S) == f"as of {now + REPORT_PAUSE_S}"
    assert sent(now + 6) == f"as of {now + 6}", "a folder that was brought here may have an older one"
    search.end()
    assert sent(now + 7) == f"as of {now + 7}"
