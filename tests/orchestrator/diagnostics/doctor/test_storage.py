"""Findings about Parlay's home, ledgers and MLflow."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from dashboards.schema import TrackingSection
from orchestrator.diagnostics.doctor.finding import Area, Finding, Level
from orchestrator.diagnostics.doctor.run import findings_with_timeout
from orchestrator.diagnostics.doctor.storage import check_home, check_ledger, check_mlflow
from search_spaces.errors import InputError
from trials.ledger import location
from trials.ledger.writer import LedgerWriter


def ledger(url: str | None) -> Finding:
    [finding] = findings_with_timeout(Area.RECORDS, lambda: check_ledger(url))
    return finding


def test_home_is_told_and_made(own_home):
    assert [(f.name, f.level) for f in check_home()] == [("home", Level.OK)]


@pytest.mark.parametrize(
    ("mount", "words"),
    [
        ("nfs4 rw,local_lock=none", "flock is a lock on the server"),
        ("nfs rw,nolock", "with flock local to this machine"),
        ("nfs4 rw,local_lock=flock", "with flock local to this machine"),
        ("lustre rw,flock", "with flock across machines"),
        ("lustre rw,localflock", "with flock local to this machine"),
        ("lustre rw", "without flock"),
        ("gpfs rw", "flock may be local to this machine"),
    ],
)
def test_a_home_on_a_network_file_system_is_not_used_and_what_flock_is_there_is_said(mount, words, monkeypatch):
    monkeypatch.setenv("PARLAY_HOME", "/shared/home/ada")
    monkeypatch.setattr(location, "_mounts", lambda: f"server:/home /shared/home {mount} 0 0\n")
    (finding,) = [finding for finding in check_home() if finding.name == "locks"]
    assert finding.level is Level.NOTE
    assert "/shared/home/ada is on" in finding.message
    assert words in finding.message
    assert f"/var/tmp/parlay-{os.geteuid()} is used" in finding.message


def test_an_mlflow_file_on_a_network_file_system_is_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr(location, "_mounts", lambda: f"server:/home {tmp_path} nfs4 rw 0 0\n")
    tracking = TrackingSection(mlflow_uri=f"sqlite:///{tmp_path}/mlflow.db")
    findings = {finding.name: finding for finding in check_mlflow(tracking)}
    assert findings["mlflow_locks"].level is Level.WARNING
    assert "nfs4" in findings["mlflow_locks"].message


def test_a_ledger_that_is_not_there_yet_is_not_made(own_home):
    finding = ledger(None)
    assert finding.level is Level.OK
    assert "will be created by the first search" in finding.message
    assert not (own_home / "ledger.db").exists()


def test_a_ledger_is_opened_and_counted(tmp_path):
    url = f"sqlite:///{tmp_path}/mine.db"
    with closing(LedgerWriter(url)):
        pass
    assert ledger(url).level is Level.OK
    assert "it has 0 searches" in ledger(url).message


@pytest.mark.bad_input(33, 34)
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://host/ledger", "unknown driver"),
        ("postgresql://me:secret@host/ledger", "holds a password"),
        ("sqlite:///{folder}/nowhere/ledger.db", "no file can be created in"),
        ("sqlite:///{folder}/other.db", "file is not a database"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_an_error_with_what_to_do(tmp_path, url, words):
    (tmp_path / "other.db").write_text("this is no database, " * 100)
    finding = ledger(url.replace("{folder}", str(tmp_path)))
    assert finding.level is Level.ERROR
    assert words in finding.message
    assert "secret" not in finding.message + (finding.fix or "")
    assert finding.fix


@pytest.mark.bad_input(33)
def test_sqlite_on_a_network_file_system_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(location, "_mounts", lambda: f"server:/home {tmp_path} nfs4 rw 0 0\n")
    finding = ledger(f"sqlite:///{tmp_path}/ledger.db")
    assert (finding.name, finding.level) == ("ledger_url", Level.ERROR)
    assert "network file system (nfs4)" in finding.message


def test_a_postgres_that_does_not_answer_is_an_error(monkeypatch):
    monkeypatch.setattr("trials.ledger.database._OPENING_PATIENCE_S", 0.0)
    finding = ledger("postgresql://127.0.0.1:1/ledger")
    assert (finding.name, finding.level) == ("ledger", Level.ERROR)
    assert "database" in finding.message


def test_mlflow_that_is_not_wanted_or_not_made_yet_is_not_made(own_home):
    for tracking in (TrackingSection(enabled=False), TrackingSection()):
        [finding] = check_mlflow(tracking)
        assert finding.level is Level.OK
    assert list(own_home.iterdir()) == []


def test_a_server_that_is_away_hinders_no_search(monkeypatch):
    class Away:
        def __init__(self, *args: object):
            pass

        def check(self) -> str:
            return "MLflow at http://127.0.0.1:1 is unreachable; the search goes on without it"

    monkeypatch.setattr("orchestrator.diagnostics.doctor.storage.MlflowSync", Away)
    [finding] = check_mlflow(TrackingSection(mlflow_uri="http://127.0.0.1:1"))
    assert (finding.level, finding.name) == (Level.WARNING, "mlflow")


@pytest.mark.bad_input(36)
def test_an_experiment_that_was_deleted_or_is_out_of_bounds_is_an_error_with_the_way_back(monkeypatch):
    class Refusing:
        def __init__(self, *args: object):
            pass

        def check(self) -> None:
            fix = "mlflow experiments restore --experiment-id 7"
            raise InputError.of("mlflow", "experiment parlay was deleted", key="tracking.experiment", fix=fix)

    monkeypatch.setattr("orchestrator.diagnostics.doctor.storage.MlflowSync", Refusing)
    [finding] = check_mlflow(TrackingSection(mlflow_uri="http://127.0.0.1:1"))
    assert (finding.level, finding.message) == (Level.ERROR, "tracking.experiment: experiment parlay was deleted")
    assert "restore" in (finding.fix or "")
