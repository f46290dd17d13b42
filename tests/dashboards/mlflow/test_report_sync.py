"""Description, report and figures of a search's run in MLflow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dashboards.mlflow.runs import NOTE
from dashboards.mlflow.sync import MlflowSync
from search_spaces.layouts.layout import Layout
from tests.dashboards.mlflow.mlflow_content import runs_by_name
from tests.dashboards.searches import SEARCH_ID, START, SearchUnderTest, ended_search, search_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]  # the first use of a fresh MLflow database takes seconds


def test_the_parent_is_described_and_carries_the_report_with_its_figures(sync, client, tmp_path, request):
    search = ended_search().record
    folder = search_folder(tmp_path, search)
    folder.report.write_text("<p>the report")
    report = sync.sync(search, folder)
    assert report.unread == ()
    found = runs_by_name(client, request.node.name)
    parent = found[SEARCH_ID]
    experiment = client.get_experiment_by_name(request.node.name).experiment_id
    assert (
        f"[t0001](#/experiments/{experiment}/runs/{found['t0001'].info.run_id}?workflowType=machine_learning)"
        in parent.data.tags[NOTE]
    )
    place = Path(client.download_artifacts(parent.info.run_id, "", str(tmp_path)))
    assert (place / "report.html").read_text() == "<p>the report"
    assert "Plotly.react" in (place / "figures/progress.html").read_text()


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
    assert client.get_run(run_id).data.tags[NOTE].startswith("**Running, 1 layout. 1.00k tokens/s, no comparison: ")
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
