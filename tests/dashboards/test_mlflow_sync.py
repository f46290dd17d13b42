"""The ledger as MLflow shows it: the contract's names, and the same runs however often it is sent."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow_runs import NOTE, NOTE_MARK, system_points, trial_points
from dashboards.mlflow_sync import MlflowSync
from dashboards.stores import tracking_uri
from search_spaces.errors import InputError
from search_spaces.layout import LAYOUT_FIELDS, Layout
from tests.dashboards.searches import SEARCH_ID, START, SearchUnderTest, ended_search, search_folder, steps
from trials.node_samples import MOST_NODES
from trials.trial import FailureReason

pytestmark = pytest.mark.timeout(180)  # the first use of a fresh MLflow database takes seconds

BEFORE_1970 = "1969-12-31T23:59:59.000000Z"
SAMPLE_OF_THE_SIXTIES = json.dumps({"time": BEFORE_1970, "cpu_utilization_percentage": 1})


def step_line(**changes: Any) -> str:
    return json.dumps(next(iter(steps(1))).to_json() | changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """One store for all tests, each with an experiment of its own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def sync(home, request) -> MlflowSync:
    return MlflowSync(None, request.node.name, home)


@pytest.fixture
def client(home, sync):
    assert sync.check() is None
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri(None, home))


def runs_by_name(client, experiment: str) -> dict[str, Any]:
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    assert len({run.info.run_name for run in found}) == len(found), "a run is there twice"
    return {run.info.run_name: run for run in found}


def everything(client, experiment: str) -> dict[str, Any]:
    """All that MLflow holds of an experiment, in a form that can be compared."""
    found = {}
    for name, run in runs_by_name(client, experiment).items():
        series = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        found[name] = (
            run.info.run_id,
            run.info.status,
            run.info.start_time,
            run.info.end_time,
            run.data.params,
            run.data.tags,
            {key: [(m.step, m.timestamp, m.value) for m in points] for key, points in series.items()},
            sorted(file.path for file in client.list_artifacts(run.info.run_id)),
        )
    return found


def test_one_parent_and_a_child_for_every_trial(sync, client, tmp_path, request):
    search = ended_search().record
    report = sync.sync(search, search_folder(tmp_path, search))
    found = runs_by_name(client, request.node.name)
    parent = found.pop(SEARCH_ID)
    assert report.run_id == parent.info.run_id
    assert report.num_runs == 5
    assert sorted(found) == ["t0001", "t0002", "t0003", "t0004"]
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}


def test_statuses_are_truthful(sync, client, tmp_path, request):
    search = SearchUnderTest()
    names = [search.start(Layout(micro_batch_size=size)) for size in (1, 2, 3, 4, 5, 6, 7)]
    search.measure(names[0], 1000.0)
    search.fail(names[1], FailureReason.GPU_OOM)
    search.fail(names[2], FailureReason.DOMINATED)
    search.fail(names[3], FailureReason.PREEMPTED)
    search.fail(names[4], FailureReason.CANCELLED_BY_SEARCH)
    search.fail(names[5], FailureReason.HANG, again=True)
    sync.sync(search.record, search_folder(tmp_path, search.record))
    status = {name: run.info.status for name, run in runs_by_name(client, request.node.name).items()}
    assert status == {
        SEARCH_ID: "RUNNING",
        "t0001": "FINISHED",
        "t0002": "FAILED",
        "t0003": "KILLED",
        "t0004": "KILLED",
        "t0005": "KILLED",
        "t0006": "RUNNING",
        "t0007": "RUNNING",
    }


@pytest.mark.parametrize(
    ("state", "status"), [("completed", "FINISHED"), ("failed", "FAILED"), ("cancelled", "KILLED")]
)
def test_the_parent_ends_as_the_search_did(sync, client, tmp_path, request, state, status):
    search = SearchUnderTest()
    search.end(state, "cancelled_by_user")
    sync.sync(search.record, search_folder(tmp_path, search.record))
    assert runs_by_name(client, request.node.name)[SEARCH_ID].info.status == status


def test_a_child_carries_the_contracts_parameters_and_tags(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    found = runs_by_name(client, request.node.name)
    child = found["t0002"]
    layout = Layout(micro_batch_size=2)
    expected = {*LAYOUT_FIELDS, "global_batch_size", "num_gpus", "layout_key"} - {"bucket_mib"}  # unknown is absent
    assert set(child.data.params) == expected
    assert child.data.params["micro_batch_size"] == "2"
    assert child.data.params["sequence_parallel"] == "false"
    assert child.data.params["layout_key"] == layout.key
    ours = {key: value for key, value in child.data.tags.items() if key.startswith("parlay.")}
    assert ours == {
        "parlay.search_id": SEARCH_ID,
        "parlay.trial": "t0002",
        "parlay.attempt": "a2",
        "parlay.kind": "search",
        "parlay.state": "measured",
        "parlay.job_id": "job-t0002-a2",
        "parlay.nodes": "node1,node2",
        "parlay.best": "true",
    }
    assert found["t0003"].data.tags["parlay.reason"] == "gpu_oom"
    assert "torch.OutOfMemoryError" in found["t0003"].data.tags[NOTE]
    assert found[SEARCH_ID].data.tags["parlay.best_run_id"] == child.info.run_id


def test_a_start_that_slurm_tells_in_whole_seconds_is_no_negative_wait():
    trial = ended_search().record.trial("t0002")
    last = trial.last_attempt
    assert last is not None
    assert last.submitted_at is not None
    early = trial.with_attempt(replace(last, started_at=last.submitted_at - 0.7))
    assert [point.value for point in trial_points(early) if point.key == "queue_wait_s"] == [0.0]


def test_a_child_carries_what_was_measured_once_and_its_steps_as_series(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    child = runs_by_name(client, request.node.name)["t0002"]
    metrics = child.data.metrics
    assert metrics["tokens_per_sec"] == 1600.0
    assert metrics["startup_parts_s.import"] == 1.25
    assert metrics["node_hours"] == 0.5  # both attempts
    assert metrics["queue_wait_s"] == 10.0
    assert len(client.get_metric_history(child.info.run_id, "tokens_per_sec")) == 1
    series = client.get_metric_history(child.info.run_id, "steps/loss")
    assert [(m.step, m.value) for m in series] == [(1, 6.0), (2, 5.0), (3, 4.0)]
    assert "steps/memory_allocated_gib" not in metrics


def test_a_child_shows_what_its_node_did_under_mlflows_own_names(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    run_id = runs_by_name(client, request.node.name)["t0002"].info.run_id
    series = client.get_metric_history(run_id, "system/cpu_utilization_percentage")
    began_ms = (START + 100) * 1000
    assert [(m.step, m.timestamp - began_ms, m.value) for m in series] == [
        (0, 0, 0.0),
        (1, 5000, 10.0),
        (2, 10000, 20.0),
    ]


def test_of_several_nodes_each_has_its_number_in_the_order_of_the_ranks(tmp_path):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    trial = search.trial("t0002")
    last = trial.last_attempt
    assert last is not None
    place = folder.attempt("t0002", "a2")
    place.system(2).write_bytes(place.system(0).read_bytes())
    on_many = trial.with_attempt(replace(last, num_nodes=MOST_NODES + 1))
    place.system(MOST_NODES).write_text("is not looked for\n")
    keys = {point.key for point in system_points(on_many, folder)}
    assert keys == {f"system/node_{node}/cpu_utilization_percentage" for node in (0, 2)}


def test_a_child_carries_its_attempts_spec_outcome_and_log(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    run_id = runs_by_name(client, request.node.name)["t0002"].info.run_id
    names = sorted(file.path for file in client.list_artifacts(run_id))
    assert names == ["attempts.json", "outcome.r0.json", "rank-00000.tail.log", "spec.json"]
    folder = Path(client.download_artifacts(run_id, "", str(tmp_path)))
    attempts = json.loads((folder / "attempts.json").read_text())
    assert [(a["attempt"], a["reason"]) for a in attempts] == [("a1", "node_failure"), ("a2", None)]
    assert (folder / "rank-00000.tail.log").read_text() == "log of t0002.a2\n"


def test_the_parent_shows_how_the_search_went(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    parent = runs_by_name(client, request.node.name)[SEARCH_ID]
    series = {
        key: [(m.step, m.value) for m in client.get_metric_history(parent.info.run_id, key)]
        for key in parent.data.metrics
    }
    assert series == {
        "best_tokens_per_sec": [(1, 1000.0), (2, 1000.0), (3, 1600.0), (4, 1600.0)],
        "node_hours_used": [(1, 0.25), (2, 0.5), (3, 1.0), (4, 1.25)],
        "trials_measured": [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)],
        "trials_failed": [(1, 0.0), (2, 1.0), (3, 1.0), (4, 2.0)],
    }


def test_a_repeat_is_a_child_of_its_kind_and_a_lucky_one_is_not_the_best_speed(sync, client, tmp_path, request):
    search = SearchUnderTest()
    for kind, rate in (("search", 1000.0), ("finalist", 1500.0), ("finalist", 1100.0)):
        search.measure(search.start(Layout(), kind), rate)
    sync.sync(search.record, search_folder(tmp_path, search.record))
    found = runs_by_name(client, request.node.name)
    assert [found[name].data.tags["parlay.kind"] for name in ("t0001", "t0002")] == ["search", "finalist"]
    assert found[SEARCH_ID].data.metrics["best_tokens_per_sec"] == pytest.approx(1100.0)


@pytest.mark.bad_input(37)
def test_the_search_file_is_flattened_in_batches_and_cut_where_too_long(sync, client, tmp_path, request):
    many = {f"axis{i}": [1, 2, i] for i in range(250)}
    search = SearchUnderTest({"space": many, "trainer": {"script": "x" * 9000, "arguments": {"a b/../c$": True}}})
    report = sync.sync(search.record, search_folder(tmp_path, search.record))
    params = runs_by_name(client, request.node.name)[SEARCH_ID].data.params
    assert len(params) == 252
    assert params["space.axis249"] == "[1, 2, 249]"
    assert len(params["trainer.script"]) == 500
    assert params["trainer.script"].endswith("[truncated]")
    assert params["trainer.arguments.a b_.._c_"] == "true"
    assert report.refused_names == ("trainer.arguments.a b/../c$",)


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


def without_ids(found: dict[str, Any]) -> dict[str, Any]:
    """The same by the runs' names, which are those of any other store as well."""
    ids = {run[0]: name for name, run in found.items()}
    return {
        name: (*run[1:5], {key: _named(value, ids) for key, value in run[5].items() if key != NOTE_MARK}, *run[6:])
        for name, run in found.items()
    }


def _named(text: str, ids: dict[str, str]) -> str:
    """The text with runs by their names; experiments have other numbers as well."""
    for run_id, name in ids.items():
        text = text.replace(run_id, name)
    return re.sub(r"#/experiments/\d+/", "#/experiments/N/", text)


@pytest.mark.fault(34)
def test_fault_34_a_lost_reply_makes_no_second_run_and_no_second_point(sync, client, tmp_path, request, monkeypatch):
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


@pytest.mark.parametrize("run", ["t0003", SEARCH_ID])
def test_a_note_a_person_wrote_is_left_alone(sync, client, home, tmp_path, request, run):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    sync.sync(search, folder)
    run_id = runs_by_name(client, request.node.name)[run].info.run_id
    client.set_tag(run_id, NOTE, "see the ticket")
    folder.report.write_text("written later")
    for later in (sync, MlflowSync(None, request.node.name, home)):  # one that remembers its own, and one that asks
        later.sync(search, folder)
        assert client.get_run(run_id).data.tags[NOTE] == "see the ticket"
        assert later.unsent(search) == []


def test_a_note_a_person_wrote_on_a_run_that_goes_on_is_there_after_its_end(sync, client, tmp_path, request):
    search = SearchUnderTest()
    trial = search.start(Layout())
    folder = search_folder(tmp_path, search.record)
    sync.sync(search.record, folder)
    found = runs_by_name(client, request.node.name)
    for run in found.values():
        client.set_tag(run.info.run_id, NOTE, f"mine: {run.info.run_name}")
    search.fail(trial, FailureReason.GPU_OOM)
    search.end()
    sync.sync(search.record, folder)
    notes = {name: run.data.tags[NOTE] for name, run in runs_by_name(client, request.node.name).items()}
    assert notes == {name: f"mine: {name}" for name in (SEARCH_ID, "t0001")}


def test_the_parent_is_described_and_carries_the_report_with_its_figures(sync, client, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_text("<p>the report")
    report = sync.sync(search, folder)
    assert report.unread == ()
    found = runs_by_name(client, request.node.name)
    parent = found[SEARCH_ID]
    experiment = client.get_experiment_by_name(request.node.name).experiment_id
    assert f"[t0001](#/experiments/{experiment}/runs/{found['t0001'].info.run_id})" in parent.data.tags[NOTE]
    place = Path(client.download_artifacts(parent.info.run_id, "", str(tmp_path)))
    assert (place / "report.html").read_text() == "<p>the report"
    assert "Plotly.react" in (place / "figures/memory.html").read_text()


def test_what_the_driver_has_to_say_meanwhile_is_replaced_by_its_last_word(sync, client, tmp_path, request):
    search = SearchUnderTest()
    trial = search.start(Layout())
    folder = search_folder(tmp_path, search.record)
    folder.report.write_text("early")
    sync.sync(search.record, folder)
    run_id = runs_by_name(client, request.node.name)[SEARCH_ID].info.run_id
    assert client.get_run(run_id).data.tags[NOTE].startswith("**No layout has been measured yet**")
    search.measure(trial, 1000.0)
    search.best(trial)
    os.utime(folder.report, (START, START))
    sync.sync(search.record, folder)
    assert client.get_run(run_id).data.tags[NOTE].startswith("**1,000 tokens/s**")
    search.end()
    folder.report.write_text("late")
    sync.sync(search.record, folder)
    assert "Completed" in client.get_run(run_id).data.tags[NOTE]
    assert Path(client.download_artifacts(run_id, "report.html", str(tmp_path))).read_text() == "late"


def test_a_report_that_is_there_already_is_not_sent_again(sync, home, tmp_path, request, monkeypatch):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_text("the report")
    sync.sync(search, folder)
    later = MlflowSync(None, request.node.name, home)
    monkeypatch.setattr(later._store._client, "log_text", pytest.fail)
    later.sync(search, folder)


def test_a_report_that_cannot_be_read_or_drawn_keeps_no_run_from_being_sent(sync, client, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_bytes(b"\xff\xfe")
    report = sync.sync(search, folder)
    assert [words.split(":")[0] for words in report.unread] == ["report.html"]
    assert runs_by_name(client, request.node.name)[SEARCH_ID].info.status == "FINISHED"
    assert sync.unsent(search) == []


def test_a_server_that_takes_no_large_files_has_all_else_and_the_report_once_it_does(
    sync, client, home, tmp_path, request, monkeypatch
):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_text("the report")
    log_text = sync._store._client.log_text

    def refuse_pages(run_id: str, text: str, name: str) -> None:
        if name.endswith(".html"):
            raise OSError("413 Request Entity Too Large")
        log_text(run_id, text, name)

    monkeypatch.setattr(sync._store._client, "log_text", refuse_pages)
    report = sync.sync(search, folder)
    assert report.unread == ("report.html: OSError: 413 Request Entity Too Large",)
    parent = runs_by_name(client, request.node.name)[SEARCH_ID]
    assert parent.info.status == "FINISHED"
    assert NOTE in parent.data.tags
    assert MlflowSync(None, request.node.name, home).sync(search, folder).unread == ()
    assert "report.html" in [file.path for file in client.list_artifacts(parent.info.run_id)]


def test_the_best_of_before_loses_its_tag(sync, client, tmp_path, request):
    search = SearchUnderTest()
    one, two = search.start(Layout()), search.start(Layout(micro_batch_size=2))
    search.measure(one, 1.0)
    search.best(one)
    folder = search_folder(tmp_path, search.record)
    sync.sync(search.record, folder)
    search.measure(two, 2.0)
    search.best(two)
    sync.sync(search.record, folder)
    found = runs_by_name(client, request.node.name)
    assert "parlay.best" not in found["t0001"].data.tags
    assert found["t0002"].data.tags["parlay.best"] == "true"


def test_without_a_best_the_parent_names_none(sync, client, tmp_path, request):
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.GPU_OOM)
    sync.sync(search.record, search_folder(tmp_path, search.record))
    assert "parlay.best_run_id" not in runs_by_name(client, request.node.name)[SEARCH_ID].data.tags


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


@pytest.mark.parametrize(
    ("damaged", "text", "left"),
    [
        ("metrics.r0.jsonl", "nonsense", "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", "[" * 100_000, "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(time=5), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(step="one"), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(step=2**63), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(time=BEFORE_1970), "system/cpu_utilization_percentage"),
        ("system.n0.r0.jsonl", '{"time": 5}', "steps/loss"),
        ("system.n0.r0.jsonl", SAMPLE_OF_THE_SIXTIES, "steps/loss"),
    ],
    ids=["words", "depth", "time", "word-for-step", "high-step", "old-step", "system", "old-system"],
)
def test_a_file_that_cannot_be_read_is_reported_and_the_rest_is_sent(
    sync, client, tmp_path, request, damaged, text, left
):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    (folder.attempt("t0001", "a1").path / damaged).write_text(text + "\n")
    report = sync.sync(search, folder)
    assert [words.split(":")[0] for words in report.unread] == ["t0001"]
    child = runs_by_name(client, request.node.name)["t0001"]
    assert child.data.metrics["tokens_per_sec"] == 1000.0
    assert {key for key in child.data.metrics if "/" in key} >= {left}
    assert "rank-00000.tail.log" in [file.path for file in client.list_artifacts(child.info.run_id)]


def test_a_number_that_no_float_can_be_is_left_out(sync, client, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.attempt("t0001", "a1").metrics().write_text(step_line(loss=10**400) + "\n")
    assert sync.sync(search, folder).unread == ()
    metrics = runs_by_name(client, request.node.name)["t0001"].data.metrics
    assert "steps/loss" not in metrics
    assert metrics["steps/step_time_s"] == 0.5


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


def test_a_store_that_cannot_be_reached_does_not_hinder_a_search(home):
    words = MlflowSync("http://user:secret@127.0.0.1:9", "parlay", home).check()
    assert "cannot be reached" in words
    assert "secret" not in words


def test_a_store_that_can_never_work_is_said_before_the_first_trial(home, tmp_path):
    (tmp_path / "notes.db").write_text("a shopping list, long enough to be no database")
    with pytest.raises(InputError, match="not an SQLite database") as caught:
        MlflowSync(f"sqlite:///{tmp_path}/notes.db", "parlay", home).check()
    assert caught.value.problems[0].key == "tracking.mlflow_uri"


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


def test_an_experiment_made_by_somebody_else_at_the_same_moment_is_taken(home, client, request, monkeypatch):
    sync = MlflowSync(None, request.node.name, home)
    seen = iter([None])
    original = sync._store._client.get_experiment_by_name
    monkeypatch.setattr(sync._store._client, "get_experiment_by_name", lambda name: next(seen, original(name)))
    assert sync.check() is None


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_fresh_store_may_be_opened_by_several_processes_at_once(tmp_path):
    program = (
        "import sys; from pathlib import Path; from dashboards.mlflow_sync import MlflowSync\n"
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


def test_nothing_is_printed_and_nothing_lies_in_the_working_directory(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    search = ended_search().record
    sync = MlflowSync(None, "quiet", tmp_path / "home")
    sync.sync(search, search_folder(tmp_path / "work", search))
    assert capfd.readouterr() == ("", "")
    assert sorted(os.listdir(tmp_path)) == ["home", "work"]
