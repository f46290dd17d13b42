"""Unusable databases are refused before MLflow is asked."""

from __future__ import annotations

import importlib.metadata
import sqlite3
import sys
from pathlib import Path

import mlflow
import pytest

from dashboards.mlflow.backend_store import require_usable_store, writable_mark
from search_spaces.errors import InputError, Problem


def the_problem(uri: str) -> Problem:
    with pytest.raises(InputError) as caught:
        require_usable_store(uri)
    (problem,) = caught.value.problems
    assert problem.rule
    assert problem.fix
    return problem


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("sqlite:///{}/notes.db", "is not an SQLite database"),
        ("sqlite:///{}", "is not a regular file"),
        ("postgresql://db:port/mlflow", "is not a database address"),
        ("postgresql+nodriver://db/mlflow", "'postgresql+nodriver'"),
    ],
)
def test_what_can_be_no_database_is_refused(tmp_path, uri, words):
    (tmp_path / "notes.db").write_text("a shopping list, long enough to be no database")
    assert words in the_problem(uri.format(tmp_path)).message


def test_a_driver_that_is_not_installed_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    problem = the_problem("postgresql+psycopg://me:secret@db/mlflow")
    assert "psycopg" in problem.message
    assert problem.fix == "pip install 'parlay[postgres]'"
    assert "secret" not in str(problem)


def test_the_installed_mlflow_is_asked_for_its_version_whatever_its_distribution_is_called(tmp_path, monkeypatch):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("CREATE TABLE alembic_version AS SELECT 'abc' AS version_num")
    database.close()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: 1 / 0)
    assert writable_mark(f"sqlite:///{tmp_path}/mlflow.db") == f"{mlflow.__version__}, schema abc"


@pytest.mark.parametrize("name", ["new.db", "not/there/yet.db", "empty.db", "mine.db"])
def test_a_database_that_is_there_or_can_be_made_is_usable_and_left_as_it_is(tmp_path: Path, name: str):
    (tmp_path / "empty.db").touch()
    with sqlite3.connect(tmp_path / "mine.db") as database:
        database.execute("CREATE TABLE runs (id)")
    database.close()
    require_usable_store(f"sqlite:///{tmp_path}/{name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.db", "mine.db"]
    require_usable_store("http://127.0.0.1:9")
