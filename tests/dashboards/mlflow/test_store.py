"""Checks of MLflow's store and experiment before the first trial; concurrent processes."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from dashboards.mlflow.sync import MlflowSync
from search_spaces.errors import InputError

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
