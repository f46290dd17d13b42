"""Start and bad usage of the command line: no heavy imports, nothing launched."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from dashboards.mlflow.sync import MlflowSync
from orchestrator.cli.main import run
from orchestrator.schema.search_file import TrackingSection
from tests.orchestrator.cli.parlay import TINY_SEARCH, environment, parlay_here, write_search
from tests.orchestrator.cli.simulated import OK, TABLE_SEARCH, write_simulated_search

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

TRAINS = ("deephyper", "ray", "torch", "deepspeed", "mlflow")
SLOW = (*TRAINS, "pandas", "pyarrow", "scipy", "sklearn", "alembic", "plotly", "fastapi", "tokenizers", "optuna")
HEAVY = (*SLOW, "numpy", "sqlalchemy")


def heavy_imports(*commands: list[str], cwd: Path) -> tuple[list[object], str]:
    """(heavy packages that these commands together import, then their exit codes) and what they print."""
    program = (
        "import sys\nfrom orchestrator.cli.main import run\n"
        f"codes = [int(run(words)) for words in {commands!r}]\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules] + codes, file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True)
    return ast.literal_eval(done.stderr.strip().splitlines()[-1]), done.stdout


@pytest.mark.slow
def test_help_imports_nothing_heavy(tmp_path):
    seen, printed = heavy_imports(
        ["--help"], ["run", "--help"], ["schema", "--help"], ["prepare", "--help"], cwd=tmp_path
    )
    assert seen == [0, 0, 0, 0]
    assert printed.count("Usage: parlay") == 4


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
@pytest.mark.parametrize("launcher", ["local.launcher:LocalLauncher", "simulated:SimulatedLauncher"])
def test_a_driver_launches_before_it_imports_what_later_trials_need(launcher, tmp_path, mlflow_store):
    module, name = launcher.split(":")
    if name == "SimulatedLauncher":
        write_simulated_search(tmp_path, OK, text=TABLE_SEARCH.replace("sampler: grid", "sampler: guided"))
    else:
        write_search(tmp_path, TINY_SEARCH.replace("sampler: random", "sampler: guided"))
    program = (
        f"import os, sys\nfrom orchestrator.launchers.{module} import {name}\n"
        "from orchestrator.cli.main import run\n"
        "def launch(launcher, request):\n"
        f"    print([m for m in {SLOW!r} if m in sys.modules], flush=True)\n"
        "    os._exit(0)\n"
        f"{name}.launch = launch\n"
        "run(['run', 'search.yaml', '--set', 'tracking.enabled=true'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.slow
def test_verbs_that_launch_nothing_import_nothing_that_trains(tmp_path):
    write_search(tmp_path)
    seen, _ = heavy_imports(["plan", "search.yaml"], ["run", "search.yaml", "--dry-run"], cwd=tmp_path)
    assert not {*seen} & {*TRAINS}
    assert seen[-2:] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"search.yaml"}


def test_a_plan_reckons_with_the_repeats_of_the_finalists_and_the_baseline(tmp_path):
    path = write_search(tmp_path)
    once = parlay_here("plan", path, "--json", cwd=tmp_path).json["node_hours"]
    wanted = ("--set", "search.finalists=2", "--set", "search.finalist_repeats=2")
    assert parlay_here("plan", path, *wanted, "--json", cwd=tmp_path).json["node_hours"] == pytest.approx(
        once * (3 + 6) / 3
    )
    assert "3 trials and 6 repeats: upper limit" in parlay_here("plan", path, *wanted, cwd=tmp_path).out


def test_it_says_its_version(tmp_path):
    assert parlay_here("--version", cwd=tmp_path).out == f"parlay {version('parlay')}\n"


def test_an_unknown_verb_is_bad_usage(tmp_path):
    answer = parlay_here("serach", cwd=tmp_path)
    assert answer.code == 2
    assert "serach" in answer.err


def test_with_json_bad_usage_is_an_error_object(tmp_path):
    answer = parlay_here("run", "--json", "--lanucher", "local", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["code"] == "usage"


def test_every_problem_of_a_file_is_named_with_line_value_rule_and_fix(tmp_path):
    bad = TINY_SEARCH.replace("max_trials: 3", "max_trils: 3").replace("global_batch_size: 8", "global_batch_size: 0")
    answer = parlay_here("run", write_search(tmp_path, bad), "--json", cwd=tmp_path)
    assert answer.code == 2
    error = answer.json["error"]
    found = {e["key"]: e for e in (error, *error["others"])}
    assert found["global_batch_size"]["line"] == 5
    assert found["global_batch_size"]["value"] == 0
    assert "max_trials" in found["search.max_trils"]["fix"]
    assert {path.name for path in tmp_path.iterdir()} == {"search.yaml"}


@pytest.mark.bad_input(45)
def test_an_unknown_search_is_exit_code_4(tmp_path):
    answer = parlay_here("status", "nothing", "--json", cwd=tmp_path)
    assert answer.code == 4
    assert answer.json["error"]["code"] == "unknown_id"


def test_a_missing_file_is_bad_input(tmp_path):
    answer = parlay_here("plan", "absent.yaml", cwd=tmp_path)
    assert answer.code == 2
    assert "absent.yaml" in answer.err


def test_a_set_on_an_unknown_path_suggests_the_known_one(tmp_path):
    answer = parlay_here("plan", write_search(tmp_path), "--set", "serach.max_trials=3", cwd=tmp_path)
    assert answer.code == 2
    assert "search" in answer.err


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_space_without_a_legal_layout_names_each_rule_and_writes_nothing(verb, tmp_path):
    none = TINY_SEARCH.replace("tensor_parallel: [1, 2]", "tensor_parallel: 3").replace(
        "baseline: {tensor_parallel: 2, micro_batch_size: 1}\n", ""
    )
    answer = parlay_here(verb, write_search(tmp_path, none), cwd=tmp_path)
    assert answer.code == 2
    assert "world" in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.bad_input(38)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_what_the_ranks_are_to_start_is_looked_for_before_anything_is_written(verb, tmp_path):
    theirs = TINY_SEARCH + "trainer: {kind: megatron-lm, script: pretrain_gpt.py, python: /nowhere/python3}\n"
    answer = parlay_here(verb, write_search(tmp_path, theirs), "--json", cwd=tmp_path)
    assert answer.code == 2
    first, second = answer.json["error"], answer.json["error"]["others"][0]
    assert (first["key"], first["value"]) == ("trainer.python", "/nowhere/python3")
    assert (second["key"], second["value"]) == ("trainer.script", str(tmp_path / "pretrain_gpt.py"))
    assert all(problem["rule"] and problem["fix"] and problem["line"] for problem in (first, second))
    assert {path.name for path in tmp_path.iterdir()} == {"search.yaml"}


@pytest.mark.slow
@pytest.mark.bad_input(38)
@pytest.mark.parametrize("verb", ["run", "selftest", "calibrate"])
def test_a_python_without_torch_is_refused_before_anything_is_written(verb, tmp_path):
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # none of its packages
    (tmp_path / "python").chmod(0o755)
    bare = TINY_SEARCH + f"trainer: {{python: {tmp_path / 'python'}}}\n"
    answer = parlay_here(verb, write_search(tmp_path, bare), "--json", cwd=tmp_path)
    assert answer.code == 2
    problem = answer.json["error"]
    assert (problem["key"], problem["value"]) == ("trainer.python", str(tmp_path / "python"))
    assert "torch" in problem["message"]
    assert "pip install torch" in problem["fix"]
    assert not (tmp_path / "runs").exists()
    assert parlay_here("plan", "search.yaml", cwd=tmp_path).code == 0


@pytest.mark.slow
@pytest.mark.bad_input(38)
@pytest.mark.parametrize("key", ["trainer.python", "search.against"])
@pytest.mark.parametrize("program", ["/bin/true", "/bin/echo", "/bin/ls"])
def test_a_program_that_is_no_python_is_refused_before_anything_is_written(key, program, tmp_path):
    search = write_search(tmp_path, TINY_SEARCH)
    answer = parlay_here("run", search, "--dry-run", "--json", "--set", f"{key}={program}", cwd=tmp_path)
    assert (answer.code, answer.json["error"]["key"]) == (2, key)
    assert answer.json["error"]["message"] == f"{program} runs no Python program"


def test_plan_lists_every_layout_and_every_rejected_one_with_its_rule(tmp_path):
    answer = parlay_here("plan", write_search(tmp_path), "--rejected", "--json", cwd=tmp_path)
    assert answer.code == 0
    plan = answer.json
    assert plan["num_layouts"] == len(plan["layouts"]) > 5
    assert sum(plan["rejected"].values()) == len(plan["rejected_layouts"]) > 0
    assert {r["rule"] for r in plan["rejected_layouts"]} == set(plan["rejected"])
    times = [row["relative_step_time"] for row in plan["layouts"]]
    assert times[0] == 1
    assert sorted(times) == times
    first = parlay_here("plan", tmp_path / "search.yaml", "--top", "2", "--json", cwd=tmp_path).json
    assert (first["layouts"], first["num_layouts"]) == (plan["layouts"][:2], plan["num_layouts"])


@pytest.mark.bad_input(32)
def test_a_work_directory_inside_a_search_is_refused(tmp_path):
    (tmp_path / "journal.jsonl").write_text("")
    answer = parlay_here("run", write_search(tmp_path), cwd=tmp_path)
    assert answer.code == 2
    assert "work_dir" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "ledger", ["sqlite:////dev/null", "sqlite:////proc/ledger.db", "sqlite:///search.yaml", "postgresql://nowhere/db"]
)
def test_a_refused_ledger_leaves_no_search_behind(ledger, tmp_path):
    changes = ("--ledger", ledger, "--set", "tracking.enabled=false")
    answer = parlay_here("run", write_search(tmp_path), *changes, "--json", cwd=tmp_path)
    assert answer.code in (2, 6)
    assert answer.json["error"]["message"]
    assert {path.name for path in tmp_path.iterdir()} <= {"search.yaml", "runs"}
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.bad_input(32)
def test_work_directories_that_cannot_be_used_are_refused_also_by_a_dry_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    write_search(tmp_path)
    for work_dir in ("file", "open", "x" * 300, "y/" * 2000, "~nobody-of-this-name/x"):
        answer = parlay_here("run", "search.yaml", "--dry-run", "--work-dir", work_dir, "--json", cwd=tmp_path)
        assert answer.code == 2, work_dir
        assert answer.json["error"]["key"] == "work_dir", work_dir


@pytest.mark.parametrize("value", [".nan", ".inf", "1e400", "[.nan]"])
def test_numbers_that_are_none_are_refused_with_an_object(value, tmp_path):
    answer = parlay_here("plan", write_search(tmp_path), "--set", f"global_batch_size={value}", "--json", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["key"] == "global_batch_size"


@pytest.mark.bad_input(50)
@pytest.mark.parametrize(
    "words", [["plan", "/x/\x1b[31m.yaml"], ["status", "a/\x1b]0;owned\x07b"], ["replay", "/x/\x1b[2J"]]
)
def test_control_characters_never_reach_the_terminal(words, tmp_path):
    answer = parlay_here(*words, cwd=tmp_path)
    assert answer.code in (2, 4)
    assert answer.err
    assert "\x1b" not in answer.err + answer.out


@pytest.mark.bad_input(45)
@pytest.mark.parametrize("given", ["x" * 5000, "x/" * 3000, "./search.yaml", "/etc/passwd/x"])
def test_what_cannot_be_a_search_is_an_unknown_id(given, tmp_path):
    write_search(tmp_path)
    assert parlay_here("status", given, "--json", cwd=tmp_path).json["error"]["code"] == "unknown_id"


@pytest.mark.parametrize("launcher", ["simulated", "pbs", "x"])
def test_a_replay_under_an_unknown_launcher_is_bad_usage(launcher, tmp_path):
    answer = parlay_here("replay", "x", "--launcher", launcher, "--json", cwd=tmp_path)
    assert answer.code == 2
    assert launcher in answer.json["error"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("ledger",), ("slurm-sandbox",), ("serve", "--executor", "bogus")])
def test_a_command_that_is_none_is_told_what_is_wrong_and_what_to_do(words, capsys):
    assert run(words) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.removeprefix("parlay:").strip()
    assert any(line.startswith("  fix: ") for line in others)


def test_an_error_about_an_option_names_the_option(tmp_path):
    answer = parlay_here("plan", write_search(tmp_path), "--launcher", "rey", "--json", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["file"] == "--launcher"


@pytest.mark.slow
def test_a_search_file_may_come_through_a_pipe_and_is_kept(tmp_path):
    program = 'exec "$0" -m orchestrator.cli.main plan <(cat search.yaml) --json'
    write_search(tmp_path)
    done = subprocess.run(
        ["bash", "-c", program, sys.executable], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_budget_below_one_trial_is_refused_before_anything_is_written(tmp_path):
    answer = parlay_here(
        "run", write_search(tmp_path), "--set", "search.budget_node_hours=1e-9", "--json", cwd=tmp_path
    )
    assert answer.code == 2
    assert answer.json["error"]["key"] == "search.budget_node_hours"
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_output_that_nobody_takes_is_no_traceback(tmp_path):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "orchestrator.cli.main", "schema"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 6
