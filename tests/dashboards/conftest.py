"""Fixtures of the dashboards' tests: one MLflow store for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.sync import MlflowSync


@pytest.fixture(scope="session")
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
