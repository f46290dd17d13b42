"""Synchronised runs: the contract's names of runs, parameters, tags, metrics and artifacts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.points import search_points, system_points, trial_points
from dashboards.mlflow.runs import NOTE, RunStatus, child_view, parent_view
from dashboards.mlflow.sync import MlflowSync, SyncReport
from search_spaces.layouts.layout import LAYOUT_FIELDS, NULLABLE, SETTINGS, Layout
from tests.dashboards.compared import compared_search
from tests.dashboards.mlflow.mlflow_content import runs_by_name
from tests.dashboards.searches import SEARCH_ID, START, SearchUnderTest, ended_search, measured_step, search_folder
from tests.kit import SLOWEST
from trials.measurement.node_metrics import MAX_NODES
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first use of a fresh MLflow database takes seconds

BEFORE_1970 = "1969-12-31T23:59:59.000000Z"


def step_line(**changes: Any) -> str:
    return json.dumps(measured_step(1).to_json() | changes)


@dataclass(frozen=True)
class Sent:
    """What the store has of `ended_search`."""

    client: Any
    report: SyncReport
    runs: dict[str, Any]

    def series(self, run: str, key: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in self.client.get_metric_history(self.runs[run].info.run_id, key)]


@pytest.fixture(scope="module")
def sent(home, tmp_path_factory) -> Sent:
    """The ended search, sent once for the tests of this file."""
    search, sync = ended_search().record, MlflowSync(None, "sent", home)
    folder = search_folder(tmp_path_factory.mktemp("sent"), search)
    folder.report.write_text("<p>the report")
    report = sync.sync(search, folder)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri(None, home))
    return Sent(client, report, runs_by_name(client, "sent"))


def test_one_parent_and_a_child_for_every_trial_with_their_files(sent, tmp_path):
    parent = sent.runs[SEARCH_ID]
    assert (sent.report.run_id, sent.report.num_runs, sent.report.unread) == (parent.info.run_id, 5, ())
    children = {name: run for name, run in sent.runs.items() if name != SEARCH_ID}
    assert sorted(children) == ["t0001", "t0002", "t0003", "t0004"]
    assert {run.data.tags["mlflow.parentRunId"] for run in children.values()} == {parent.info.run_id}
    for run in sent.runs.values():
        assert run.data.tags["mlflow.user"]
        assert run.data.tags["mlflow.source.name"].startswith("parlay ")
    (dataset,) = parent.inputs.dataset_inputs
    assert (dataset.dataset.name, dataset.dataset.source_type) == ("the trainer's own tokens", "code")
    files = sorted(file.path for file in sent.client.list_artifacts(sent.runs["t0002"].info.run_id))
    assert files == ["attempts.json", "metrics.r0.jsonl", "outcome.r0.json", "rank-00000.tail.log", "spec.json"]
    folder = Path(sent.client.download_artifacts(sent.runs["t0002"].info.run_id, "", str(tmp_path)))
    attempts = json.loads((folder / "attempts.json").read_text())
    assert [(a["attempt"], a["reason"]) for a in attempts] == [("a1", "node_failure"), ("a2", None)]
    assert (folder / "rank-00000.tail.log").read_text() == "log of t0002.a2\n"
    place = Path(sent.client.download_artifacts(sent.runs[SEARCH_ID].info.run_id, "", str(tmp_path)))
    assert (place / "report.html").read_text() == "<p>the report"


def test_statuses_are_truthful():
    search = SearchUnderTest()
    names = [search.start(Layout(micro_batch_size=size)) for size in (1, 2, 3, 4, 5, 6, 7)]
    search.measure(names[0], 1000.0)
    for name, reason in zip(names[1:], ("gpu_oom", "pruned", "preempted", "cancelled_by_search"), strict=False):
        search.fail(name, FailureReason(reason))
    search.fail(names[5], FailureReason.HANG, again=True)
    found = [child_view(search.record, trial).status.value for trial in search.record.trials]
    assert found == ["FINISHED", "FAILED", "KILLED", "KILLED", "KILLED", "RUNNING", "RUNNING"]
    assert parent_view(search.record).status is RunStatus.RUNNING


@pytest.mark.parametrize(
    ("state", "reason", "status"),
    [
        ("completed", "max_trials", "FINISHED"),
        ("failed", "script_error", "FAILED"),
        ("cancelled", "cancelled_by_user", "KILLED"),
        ("completed", "submission_rejected", "FAILED"),
    ],
)
def test_the_parent_ends_as_the_search_did(state, reason, status):
    search = SearchUnderTest()
    search.end(state, reason)
    assert parent_view(search.record).status.value == status
    assert "parlay.best_run_id" not in parent_view(search.record).tags


def test_a_child_carries_the_contracts_parameters_and_tags(sent):
    child = sent.runs["t0002"]
    unknown = {*NULLABLE, SETTINGS}
    expected = {*LAYOUT_FIELDS, "global_batch_size", "num_gpus", "layout_key"} - unknown
    assert set(child.data.params) == expected
    assert child.data.params["micro_batch_size"] == "2"
    assert child.data.params["sequence_parallel"] == "false"
    assert child.data.params["layout_key"] == Layout(micro_batch_size=2).key
    ours = {key: value for key, value in child.data.tags.items() if key.startswith("parlay.")}
    assert ours == {
        "parlay.search_id": SEARCH_ID,
        "parlay.trial": "t0002",
        "parlay.attempt": "a2",
        "parlay.kind": "trial",
        "parlay.state": "measured",
        "parlay.job_id": "job-t0002-a2",
        "parlay.nodes": "node1,node2",
        "parlay.role": "best",
    }
    failed = sent.runs["t0003"].data.tags
    assert failed["parlay.reason"] == "gpu_oom"
    assert failed[NOTE].startswith("**torch.OutOfMemoryError**\n\n    Traceback")
    assert sent.runs[SEARCH_ID].data.tags["parlay.best_run_id"] == child.info.run_id


def test_a_child_names_the_slowest_rank_and_its_node_and_each_variable_is_a_parameter_of_its_own():
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 5.0, slowest_rank=SLOWEST)
    [trial] = search.record.trials
    assert child_view(search.record, trial).tags["parlay.slowest_node"] == "n2"
    points = {point.key: point.value for point in trial_points(search.record, trial)}
    assert [points[f"slowest_rank.{key}"] for key in ("rank", "compute_s", "slowdown")] == [3, 0.42, 1.4]
    search = SearchUnderTest()
    search.start(Layout(settings="env.OMP_NUM_THREADS=2 launch.cpu_bind=cores"))
    search.start(Layout(settings="-env.OMP_NUM_THREADS launch.cpu_bind=cores"))
    first, second = (child_view(search.record, trial).params for trial in search.record.trials)
    assert (first["env.OMP_NUM_THREADS"], first["launch.cpu_bind"]) == ("2", "cores")
    assert {"env.OMP_NUM_THREADS", "settings"}.isdisjoint(second)


def test_a_start_that_slurm_tells_in_whole_seconds_is_no_negative_wait():
    search = ended_search()
    trial = search.record.trial("t0002")
    early = trial.with_attempt(replace(trial.last_attempt, started_at=trial.last_attempt.submitted_at - 0.7))
    assert [point.value for point in trial_points(search.record, early) if point.key == "queue_wait_s"] == [0.0]


def test_a_child_carries_what_was_measured_once_and_its_steps_and_nodes_as_series(sent):
    metrics = sent.runs["t0002"].data.metrics
    assert (metrics["tokens_per_sec"], metrics["startup_parts_s.import"], metrics["queue_wait_s"]) == (1600, 1.25, 10)
    assert metrics["node_hours"] == 0.5  # both attempts
    assert metrics["measured_share"] == pytest.approx(8 / 1.6 / 3600 / 0.5, rel=1e-4)
    assert len(sent.series("t0002", "tokens_per_sec")) == 1
    assert sent.series("t0002", "steps/loss") == [(1, 6.0), (2, 5.0), (3, 4.0)]
    assert "steps/memory_allocated_gib" not in metrics
    used = "system/cpu_utilization_percentage"
    assert sent.series("t0002", used) == [(0, 0.0), (1, 10.0), (2, 20.0)]
    times = [m.timestamp for m in sent.client.get_metric_history(sent.runs["t0002"].info.run_id, used)]
    assert times == [(START + 100 + 5 * step) * 1000 for step in range(3)]


def test_of_several_nodes_each_has_its_number_in_the_order_of_the_ranks(tmp_path):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    trial = search.trial("t0002")
    place = folder.attempt("t0002", "a2")
    place.system(2).write_bytes(place.system(0).read_bytes())
    place.system(MAX_NODES).write_text("is not looked for\n")
    on_many = trial.with_attempt(replace(trial.last_attempt, num_nodes=MAX_NODES + 1))
    keys = {point.key for point in system_points(on_many, folder)}
    assert keys == {f"system/node_{node}/cpu_utilization_percentage" for node in (0, 2)}


def test_the_parent_shows_how_the_search_went(sent):
    parent = sent.runs[SEARCH_ID]
    measured_s = (8.0, 8.0, 8.0 + 5.0, 8.0 + 5.0)  # eight steps of a second, then of 1 / 1.6 s
    shares = [seconds / 3600 / hours for seconds, hours in zip(measured_s, (0.25, 0.5, 1.0, 1.25), strict=True)]
    assert {key: [value for _, value in sent.series(SEARCH_ID, key)] for key in parent.data.metrics} == {
        "best_tokens_per_sec": [1000.0] * 4,
        "node_hours_used": [0.25, 0.5, 1.0, 1.25],
        "measured_share": [pytest.approx(share, rel=1e-4) for share in shares],
        "trials_measured": [1.0, 1.0, 2.0, 2.0],
        "trials_stopped_early": [0.0, 0.0, 0.0, 1.0],
        "trials_failed": [0.0, 1.0, 1.0, 1.0],
    }
    experiment = sent.client.get_experiment_by_name("sent")
    link = f"#/experiments/{experiment.experiment_id}/runs/{sent.runs['t0001'].info.run_id}"
    assert f"[t0001]({link}?workflowType=machine_learning)" in parent.data.tags[NOTE]
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    found = sent.client.search_runs([experiment.experiment_id], "tags.`parlay.kind` = 'search'")
    assert [run.info.run_name for run in found] == [SEARCH_ID]


def test_the_series_of_the_best_is_the_answer_as_it_stood_then():
    """Over all runs of the best layout then; one of another global batch does not compete."""
    search = compared_search()
    search.measure(search.start(Layout(micro_batch_size=64)), 900_000.0)
    search.measure(search.start(search.record.trial("t0002").layout, "repeat"), 150_000.0)
    best = [point.value for point in search_points(search.record) if point.key == "best_tokens_per_sec"]
    assert best == [100_000.0, 160_000.0, 160_000.0, 160_000.0, 160_000.0, pytest.approx(154_919.33, rel=1e-4)]
    repeat = search.record.trials[-1]
    assert child_view(search.record, repeat).tags["parlay.kind"] == "repeat"


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
    assert report.altered_names == ("trainer.arguments.a b/../c$",)


DAMAGED = (
    ("metrics.r0.jsonl", "nonsense"),
    ("metrics.r0.jsonl", "[" * 100_000),
    ("metrics.r0.jsonl", step_line(step="one")),
    ("metrics.r0.jsonl", step_line(loss=10**400)),
    ("metrics.r0.jsonl", step_line(time=BEFORE_1970)),
    ("system.n0.r0.jsonl", '{"time": 5}'),
)


def test_a_file_that_cannot_be_read_is_reported_and_the_rest_is_sent(sync, client, tmp_path, request):
    search = SearchUnderTest()
    for number in range(len(DAMAGED)):
        search.measure(search.start(Layout(micro_batch_size=number + 1)), 1000.0)
    folder = search_folder(tmp_path, search.record)
    names = [trial.trial for trial in search.record.trials]
    for name, (file, text) in zip(names, DAMAGED, strict=True):
        (folder.attempt(name, "a1").path / file).write_text(text + "\n")
    report = sync.sync(search.record, folder)
    assert [words.split(":")[0] for words in report.unread] == names
    found = runs_by_name(client, request.node.name)
    for name, (file, _) in zip(names, DAMAGED, strict=True):
        left = "system/cpu_utilization_percentage" if file.startswith("metrics") else "steps/loss"
        assert found[name].data.metrics.keys() >= {"tokens_per_sec", left}
        assert "rank-00000.tail.log" in [file.path for file in client.list_artifacts(found[name].info.run_id)]
