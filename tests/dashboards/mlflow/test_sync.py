"""Synchronised runs: the contract's names of runs, parameters, tags, metrics and artifacts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.mlflow.points import search_points, system_points, trial_points
from dashboards.mlflow.runs import NOTE, RunStatus, child_view, parent_view
from search_spaces.layouts.layout import LAYOUT_FIELDS, NULLABLE, SETTINGS, Layout
from tests.dashboards.compared import compared_search
from tests.dashboards.mlflow.mlflow_content import runs_by_name
from tests.dashboards.searches import SEARCH_ID, START, SearchUnderTest, ended_search, search_folder, steps
from tests.kit import SLOWEST
from trials.measurement.node_metrics import MAX_NODES
from trials.trial import FailureReason

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first use of a fresh MLflow database takes seconds

BEFORE_1970 = "1969-12-31T23:59:59.000000Z"
SAMPLE_OF_THE_SIXTIES = json.dumps({"time": BEFORE_1970, "cpu_utilization_percentage": 1})


def step_line(**changes: Any) -> str:
    return json.dumps(next(iter(steps(1))).to_json() | changes)


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
    search.fail(names[2], FailureReason.PRUNED)
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
    expected = {*LAYOUT_FIELDS, "global_batch_size", "num_gpus", "layout_key"} - {
        *NULLABLE,
        SETTINGS,
    }  # unknown is absent
    assert set(child.data.params) == expected
    assert child.data.params["micro_batch_size"] == "2"
    assert child.data.params["sequence_parallel"] == "false"
    assert child.data.params["layout_key"] == layout.key
    ours = {key: value for key, value in child.data.tags.items() if key.startswith("parlay.")}
    assert ours == {
        "parlay.search_id": SEARCH_ID,
        "parlay.trial": "t0002",
        "parlay.attempt": "a2",
        "parlay.kind": "trial",
        "parlay.state": "measured",
        "parlay.job_id": "job-t0002-a2",
        "parlay.nodes": "node1,node2",
        "parlay.best": "true",
    }
    assert found["t0003"].data.tags["parlay.reason"] == "gpu_oom"
    assert "torch.OutOfMemoryError" in found["t0003"].data.tags[NOTE]
    assert found[SEARCH_ID].data.tags["parlay.best_run_id"] == child.info.run_id


def test_a_child_names_the_slowest_rank_and_its_node():
    search = SearchUnderTest()
    search.measure(search.start(Layout()), 5.0, slowest_rank=SLOWEST)
    [trial] = search.record.trials
    assert child_view(search.record, trial).tags["parlay.slowest_node"] == "n2"
    points = {point.key: point.value for point in trial_points(search.record, trial)}
    assert (points["slowest_rank.rank"], points["slowest_rank.compute_s"]) == (3, 0.42)
    assert points["slowest_rank.slowdown"] == 1.4


def test_a_start_that_slurm_tells_in_whole_seconds_is_no_negative_wait():
    search = ended_search()
    trial = search.record.trial("t0002")
    last = trial.last_attempt
    assert last is not None
    assert last.submitted_at is not None
    early = trial.with_attempt(replace(last, started_at=last.submitted_at - 0.7))
    assert [point.value for point in trial_points(search.record, early) if point.key == "queue_wait_s"] == [0.0]


def test_a_child_carries_what_was_measured_once_and_its_steps_as_series(sync, client, tmp_path, request):
    search = ended_search().record
    sync.sync(search, search_folder(tmp_path, search))
    child = runs_by_name(client, request.node.name)["t0002"]
    metrics = child.data.metrics
    assert metrics["tokens_per_sec"] == 1600.0
    assert metrics["startup_parts_s.import"] == 1.25
    assert metrics["node_hours"] == 0.5  # both attempts
    assert metrics["measured_share"] == pytest.approx(8 / 1.6 / 3600 / 0.5)
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
    on_many = trial.with_attempt(replace(last, num_nodes=MAX_NODES + 1))
    place.system(MAX_NODES).write_text("is not looked for\n")
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
    measured_s = (8.0, 8.0, 8.0 + 5.0, 8.0 + 5.0)  # eight steps of a second, then of 1 / 1.6 s
    shares = [seconds / 3600 / hours for seconds, hours in zip(measured_s, (0.25, 0.5, 1.0, 1.25), strict=True)]
    assert series == {
        "best_tokens_per_sec": [(1, 1000.0), (2, 1000.0), (3, 1000.0), (4, 1000.0)],
        "node_hours_used": [(1, 0.25), (2, 0.5), (3, 1.0), (4, 1.25)],
        "measured_share": [(step, pytest.approx(share)) for step, share in enumerate(shares, 1)],
        "trials_measured": [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)],
        "trials_stopped_early": [(1, 0.0), (2, 0.0), (3, 0.0), (4, 1.0)],
        "trials_failed": [(1, 0.0), (2, 1.0), (3, 1.0), (4, 1.0)],
    }


def test_a_repeat_is_a_child_of_its_kind_and_a_lucky_one_is_not_the_best_speed(sync, client, tmp_path, request):
    search = SearchUnderTest()
    for kind, rate in (("search", 1000.0), ("repeat", 1500.0), ("repeat", 1100.0)):
        search.measure(search.start(Layout(), kind), rate)
    sync.sync(search.record, search_folder(tmp_path, search.record))
    found = runs_by_name(client, request.node.name)
    assert [found[name].data.tags["parlay.kind"] for name in ("t0001", "t0002")] == ["trial", "repeat"]
    assert found[SEARCH_ID].data.metrics["best_tokens_per_sec"] == pytest.approx(1100.0)


def test_the_series_of_the_best_is_the_answer_as_it_stood_then():
    """Over all runs of the best layout then; one of another global batch does not compete."""
    search = compared_search()
    search.measure(search.start(Layout(micro_batch_size=64)), 900_000.0)
    search.measure(search.start(search.record.trial("t0002").layout, "repeat"), 150_000.0)
    points = search_points(search.record)
    best = [point.value for point in points if point.key == "best_tokens_per_sec"]
    assert best == [100_000.0, 160_000.0, 160_000.0, 160_000.0, 160_000.0, pytest.approx(154_919.33, abs=0.01)]


def test_a_search_that_the_cluster_refused_has_failed():
    search = compared_search()
    search.end("completed", "submission_rejected")
    assert parent_view(search.record).status is RunStatus.FAILED


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


def test_without_a_best_the_parent_names_none(sync, client, tmp_path, request):
    search = SearchUnderTest()
    search.fail(search.start(Layout()), FailureReason.GPU_OOM)
    sync.sync(search.record, search_folder(tmp_path, search.record))
    assert "parlay.best_run_id" not in runs_by_name(client, request.node.name)[SEARCH_ID].data.tags


@pytest.mark.parametrize(
    ("damaged", "text", "left"),
    [
        ("metrics.r0.jsonl", "nonsense", "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", "[" * 100_000, "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(time=5), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(step="one"), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(loss=10**400), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(step=2**63), "system/cpu_utilization_percentage"),
        ("metrics.r0.jsonl", step_line(time=BEFORE_1970), "system/cpu_utilization_percentage"),
        ("system.n0.r0.jsonl", '{"time": 5}', "steps/loss"),
        ("system.n0.r0.jsonl", SAMPLE_OF_THE_SIXTIES, "steps/loss"),
    ],
    ids=["words", "depth", "time", "word-for-step", "no-float", "high-step", "old-step", "system", "old-system"],
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
