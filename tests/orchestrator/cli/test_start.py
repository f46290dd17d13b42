"""Start and bad usage of the command line: no heavy imports, nothing launched."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from dashboards.mlflow.sync import MlflowSync
from orchestrator.cli.main import main as run
from orchestrator.config.schema.search_file import TrackingSection
from tests.kit import TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import environment, parlay_here
from tests.orchestrator.cli.simulated import OK, TABLE_SEARCH, write_simulated_search

pytestmark = pytest.mark.timeout(120)

TRAINS = ("deephyper", "ray", "torch", "deepspeed", "mlflow")
SLOW = (*TRAINS, "pandas", "pyarrow", "scipy", "sklearn", "alembic", "plotly", "fastapi", "tokenizers", "optuna")
HEAVY = (*SLOW, "numpy", "sqlalchemy")


def heavy_imports(*commands: list[str], cwd: Path) -> tuple[list[object], str]:
    """(heavy packages that these commands together import, then their exit codes) and what they print."""
    program = (
        "import sys\nfrom orchestrator.cli.main import main as run\n"
        f"codes = [int(run(words)) for words in {commands!r}]\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules] + codes, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    return ast.literal_eval(done.stderr.strip().splitlines()[-1]), done.stdout


@pytest.mark.slow
def test_help_imports_nothing_heavy(tmp_path):
    seen, printed = heavy_imports(
        ["--help"], ["run", "--help"], ["schema", "--help"], ["import", "--help"], cwd=tmp_path
    )
    assert seen == [0, 0, 0, 0]
    assert printed.count("Usage: parlay") == 4
    assert all(f"─ {heading} ─" in printed for heading in ("Prepare a search", "Use the result", "Check the cluster"))


@pytest.fixture
def mlflow_store(monkeypatch, tmp_path) -> None:
    """A store that an earlier search has used, in a home of its own."""
    monkeypatch.setenv("PARLAY_HOME", str(tmp_path / "home"))
    assert MlflowSync(None, TrackingSection().experiment, tmp_path / "home").check() is None


@pytest.mark.slow
@pytest.mark.processes
def test_submit_and_status_import_nothing_that_only_trials_need(tmp_path, mlflow_store):
    """The driver, a process of its own here, ends with its simulated search."""
    write_simulated_search(tmp_path, OK, text=TABLE_SEARCH.replace("tracking: {enabled: false}\n", ""))
    seen, _ = heavy_imports(["submit", "search.yaml", "--no-service"], ["status"], ["status", "--all"], cwd=tmp_path)
    assert not {*seen} & {*SLOW}
    assert seen[-3:] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.processes
def test_a_driver_launches_before_it_imports_what_later_trials_need(tmp_path, mlflow_store):
    search_file(tmp_path, TINY_SEARCH, search={"sampler": "guided"})
    program = (
        "import os, sys\nfrom orchestrator.launchers.local.launcher import LocalLauncher\n"
        "from orchestrator.cli.main import main as run\n"
        "def launch(launcher, request):\n"
        f"    print([m for m in {SLOW!r} if m in sys.modules], flush=True)\n"
        "    os._exit(0)\n"
        "LocalLauncher.launch = launch\n"
        "run(['run', 'search.yaml', '--set', 'tracking.enabled=true'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
@pytest.mark.bad_input(38)
@pytest.mark.parametrize(
    ("key", "script", "message"),
    [
        ("trainer.python", "echo not python", "runs no Python program"),
        ("search.against", "echo not python", "runs no Python program"),
        ("trainer.python", f'exec {sys.executable} -S "$@"', "torch"),
    ],
    ids=["no Python", "no Python to compare with", "no packages"],
)
def test_a_python_that_cannot_run_a_trial_is_refused_before_anything_is_written(key, script, message, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    answer = parlay_here("run", search_file(tmp_path, TINY_SEARCH), "--json", "--set", f"{key}={python}", cwd=tmp_path)
    assert (answer.code, answer.json["error"]["key"]) == (2, key)
    assert message in answer.json["error"]["message"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["replay", "x", "--launcher", "simulated"], "simulated"),
        (["plan", "search.yaml", "--launcher", "rey"], "--launcher"),
        (["run", "search.yaml", "--set", "search.budget_node_hours=1e-9"], "search.budget_node_hours"),
        (["selftest", "search.yaml", "--case", "nosuch"], "--case"),
        (["selftest", "search.yaml", "--set", "trainer={kind: megatron-lm, script: search.yaml}"], "trainer.kind"),
        (["selftest", "search.yaml", "--work-dir", "search.yaml/runs"], "work_dir"),
        (["calibrate", "search.yaml", "--launcher", "slurm", "--set", "work_dir=%j"], "work_dir"),
        (["doctor", "--submit-test"], "--submit-test"),
        (["doctor", "--fabric"], "--fabric"),
        (["submit", "search.yaml", "--as-job", "--job-time", "5", "--launcher", "slurm"], "--job-time"),
        (["submit", "search.yaml", "--job-time", "8:00:00"], "--job-time"),
        (["submit", "search.yaml", "--executor", "ray", "--as-job"], "--executor"),
        (["submit", "search.yaml", "--cron"], "--cron"),
        (["submit", "search.yaml", "--cron", "--as-job", "--launcher", "slurm"], "--cron"),
        (["run", "search.yaml", "--dry-run", "--scripts", "out"], "--scripts"),
        (["compare", "a", "b", "--margin", "nan"], "margin"),
        (["logs"], "parlay logs SEARCH t0001"),
        (["logs", "past"], "parlay logs past t0001"),
        (["logs", "t1"], "parlay logs SEARCH t0001"),
        (["plan"], "SEARCH.YAML"),
        (["plan", "search.yaml", "--nodes", ""], "--nodes"),
        (["plan", "search.yaml", "--from", "past"], "--from"),
        (["plan", "--from", "past", "--sampler", ""], "--sampler"),
        (["plan", "--from", "past", "--set", "work_dir=here"], "--set"),
        (["plan", "--from", "past", "--rejected"], "--rejected"),
        (["plan", "--nodes", "2", "--scaling", "up"], "--scaling"),
        (["plan", "--nodes", "0"], "--nodes"),
        (["plan", "--from", "nope.csv"], "--from nope.csv"),
    ],
)
def test_bad_usage_is_an_error_object_and_writes_nothing(words, told, tmp_path):
    search_file(tmp_path, TINY_SEARCH)
    answer = parlay_here(*words, "--json", cwd=tmp_path)
    assert answer.code == 2
    error = answer.json["error"]
    assert told in f"{error['key']} {error['file']} {error['message']} {error['fix']}"
    assert {path.name for path in tmp_path.iterdir()} == {"search.yaml"}


def test_a_site_nobody_knows_or_a_bad_profile_is_refused_and_no_file_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('title = "Ours"\nsources = []\n[slurm]\npartion = "gpu"\n')
    assert run(["init", "--site", "lumi", "-o", "good.yaml"]) == 0
    assert "site: lumi" in (tmp_path / "good.yaml").read_text()
    for site, words in (("lummi", "--site: is 'lummi'"), ("bad.toml", "bad.toml: slurm.partion")):
        assert run(["init", "--site", site, "-o", "none.yaml"]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "none.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("ledger",), ("slurm-sandbox",), ("serve", "--executor", "bogus")])
def test_a_command_that_is_none_is_told_what_is_wrong_and_what_to_do(words, capsys):
    assert run(words) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.removeprefix("parlay:").strip()
    assert any(line.startswith("  fix: ") for line in others)


@pytest.mark.slow
def test_output_that_nobody_takes_is_no_traceback(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "orchestrator.cli.main", "schema"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 6


SETUP = "module purge\n\techo \x1b[31mred\n"
SHOWN = "  module purge\n          echo \\x1b[31mred"


@pytest.mark.security("setup_file")
def test_a_plan_shows_what_the_jobs_will_source(tmp_path):
    (tmp_path / "my setup.sh").write_text(SETUP)
    path = search_file(tmp_path, TINY_SEARCH, launcher={"kind": "slurm", "slurm": {"setup_file": "my setup.sh"}})
    shown = parlay_here("plan", path, cwd=tmp_path)
    assert shown.out.endswith(f"each job sources a copy of {tmp_path}/my setup.sh:\n{SHOWN}\n")
    found = parlay_here("plan", path, "--json", cwd=tmp_path).json
    assert found["setup_file"] == {"path": f"{tmp_path}/my setup.sh", "text": SETUP}
    local = parlay_here("plan", path, "--launcher", "local", "--json", cwd=tmp_path).json
    assert local["setup_file"] is None
