"""No verb opens a file of a database by other means than SQLite: closing it would drop SQLite's locks.

Every Python process that a verb starts is watched, by an audit hook that its `sitecustomize` installs.
"""

from __future__ import annotations

import subprocess

import pytest
from typer.main import get_command

from orchestrator.cli.verbs import app
from tests.orchestrator.cli.parlay import environment, python_that_begins_with
from tests.orchestrator.cli.simulated import OK, TABLE_SEARCH, write_simulated_search

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

HOOK = """\
import os, sys

NAMES = tuple(name + end for name in ("ledger.db", "mlflow.db") for end in ("", "-wal", "-shm", "-journal"))
LOG = os.open(os.environ["PARLAY_TEST_OPENED"], os.O_WRONLY | os.O_APPEND)

def watch(event, args):
    if event == "sqlite3.connect" and any(name in str(args[0]) for name in NAMES):
        os.write(LOG, f"sqlite {args[0]}\\n".encode())
    if event == "open" and isinstance(args[0], (str, bytes)) and os.fsdecode(args[0]).endswith(NAMES):
        os.write(LOG, f"opened {args[0]!r} by {sys.orig_argv}\\n".encode())

sys.addaudithook(watch)
"""

ONE_AFTER_ANOTHER = """\
import glob, sys
from orchestrator.cli.main import main as run
for line in open(sys.argv[1]).read().splitlines():
    code, *words = line.replace("FOLDER", (glob.glob("runs/*") or [""])[0]).split()
    assert run(words) == int(code), line
"""

VERBS = """\
0 init
0 schema
0 doctor search.yaml
0 plan search.yaml
0 expect llama3-8b-lora-h100
0 run search.yaml
0 run search.yaml
0 status
0 status --all
0 watch
0 best
0 logs t0001
0 report
0 compare FOLDER FOLDER
0 export
0 plan --from FOLDER --nodes 2
0 sync
2 advance
0 resume
0 cancel
0 ledger rebuild
"""

"""With the exit code of each: a table's search is none to drive in turns."""

NOT_HERE = {
    *("dashboard", "serve", "submit"),  # of a process of their own
    *("import", "slurm-sandbox"),  # of no search and no ledger
    *("selftest", "calibrate", "replay"),  # of a job of their own, written down nowhere
}


def test_every_verb_is_watched_or_said_to_meet_no_database():
    assert set(get_command(app).commands) == {line.split()[1] for line in VERBS.splitlines()} | NOT_HERE


@pytest.mark.walks
def test_one_verb_after_another(tmp_path, own_home, monkeypatch):
    log = tmp_path / "opened"
    log.touch()
    monkeypatch.setenv("PARLAY_TEST_OPENED", str(log))
    text = TABLE_SEARCH.replace("tracking: {enabled: false}\n", "")
    write_simulated_search(tmp_path, OK, OK, OK, text=text)
    (tmp_path / "verbs").write_text(VERBS)
    command = [python_that_begins_with(HOOK, tmp_path), "-c", ONE_AFTER_ANOTHER, "verbs"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    accesses = log.read_text()
    assert [line for line in accesses.splitlines() if line.startswith("opened")] == []
    assert {f"{own_home}/{name}" in accesses for name in ("ledger.db", "mlflow.db")} == {True}
