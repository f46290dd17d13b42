"""A search without a resident driver: cron starts a turn from time to time."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from orchestrator.cli import advance
from orchestrator.cli.output import Exit
from orchestrator.records import lookup
from orchestrator.schema.launcher import LauncherSection
from orchestrator.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.cli.parlay import TINY_SEARCH, parlay_here, write_search
from tests.orchestrator.slurm_searches import Bench, record_of, until
from trials.ledger.events import SearchState
from trials.ledger.reader import LedgerReader
from trials.trial import TrialState

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

TRIALS = 4
FEW = ("--set", f"search.max_trials={TRIALS}", "--set", "search.parallel_trials=2")


@pytest.fixture
def bench(tmp_path, slurm_sandbox: SlurmSandbox) -> Bench:
    return Bench(tmp_path, slurm_sandbox)


def cron_starts(bench: Bench, line: str) -> int:
    """Run a crontab line as cron does: without the variables of the user's shell."""
    command = line.split(maxsplit=5)[5].replace(r"\%", "%")
    bare = {"HOME": str(bench.place), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
    return subprocess.run(["/bin/sh", "-c", command], env=bare, cwd="/", timeout=60).returncode


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_the_line_for_cron_drives_a_search_to_its_end(bench):
    submitted = bench.parlay("submit", bench.write(takes_s=0.2), "--cron", *FEW, "--json")
    assert submitted.code == 0, submitted.err
    folder, line = bench.the_search(), submitted.json["crontab"]
    assert record_of(folder).state is SearchState.CREATED
    assert submitted.json["scrontab"][-1].endswith(shlex.quote(str(folder.cron_script)))
    deadline = time.monotonic() + 120
    while not record_of(folder).state.is_ended:
        assert time.monotonic() < deadline, folder.driver_log.read_text()[-2000:]
        assert cron_starts(bench, line) == 0, folder.driver_log.read_text()[-2000:]
    record = record_of(folder)
    assert [trial.state for trial in record.trials] == [TrialState.MEASURED] * TRIALS
    assert [len(trial.attempts) for trial in record.trials] == [1] * TRIALS
    assert folder.recipe.exists()
    again = bench.parlay("advance", str(folder.path), "--json")
    assert (again.code, again.json["state"]) == (0, "completed")
    assert record_of(folder).last_seq == record.last_seq


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_search_that_is_driven_gets_no_turn_and_one_without_slurm_none_ever(bench):
    driver = bench.start("run", bench.write(free=0), *FEW, tabled=True)
    try:
        folder = bench.the_search()
        until(lambda: record_of(folder).state, lambda state: state is SearchState.RUNNING)
        held = bench.parlay("advance", str(folder.path), "--json")
        assert (held.code, held.json["error"]["code"]) == (5, "held")
        of_all = bench.parlay("advance", "--all", "--json")
        assert (of_all.code, of_all.json["held"], of_all.json["searches"]) == (5, [folder.search_id], [])
    finally:
        driver.kill()
        driver.wait()
    freed = bench.parlay("advance", "--all", "--json")
    assert (freed.code, [search["search_id"] for search in freed.json["searches"]]) == (0, [folder.search_id])
    assert bench.parlay("cancel", str(folder.path)).code == 0


def test_turns_are_refused_where_trials_end_with_their_driver_and_nothing_is_written(tmp_path):
    path = write_search(tmp_path, TINY_SEARCH)
    refused = parlay_here("submit", path, "--cron", "--json", cwd=tmp_path)
    assert (refused.code, refused.json["error"]["key"]) == (2, "--cron")
    both = parlay_here("submit", path, "--cron", "--as-job", "--launcher", "slurm", "--json", cwd=tmp_path)
    assert (both.code, both.json["error"]["key"]) == (2, "--cron")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("kind", ["slurm_pilot", "local", "ray"])
def test_only_jobs_of_their_own_may_be_left_to_turns(kind):
    """Between two turns a pilot would be idle, and end."""
    with pytest.raises(InputError) as refused:
        advance.require_detached_jobs(LauncherSection(kind=kind), "--cron")
    [problem] = refused.value.problems
    assert (problem.key, problem.value, problem.message) == ("--cron", kind, f"launcher.kind is {kind}")
    assert problem.fix == "--launcher slurm, or `parlay submit` without --cron"
    advance.require_detached_jobs(LauncherSection(kind="slurm"), "--cron")


def test_shared_jobs_are_not_left_to_turns():
    with pytest.raises(InputError) as refused:
        advance.require_detached_jobs(LauncherSection(kind="slurm", slurm=SlurmSection(shared_jobs=True)), "--cron")
    [problem] = refused.value.problems
    assert (problem.key, problem.value) == ("launcher.slurm.shared_jobs", True)
    assert problem.fix == "leave it out, or `parlay submit` without --cron"


def test_a_search_that_cannot_be_read_keeps_no_other_from_its_turn(tmp_path, monkeypatch, capsys):
    asked: list[str] = []

    def damaged(search_id: str, url: str) -> None:
        asked.append(search_id)
        raise InputError.of("search_json", "is no search as Parlay writes it down")

    ids = ["one-aaaaaa", "two-aaaaaa"]
    found = [SimpleNamespace(search_id=search_id, state=SearchState.RUNNING) for search_id in ids]
    monkeypatch.setattr(LedgerReader, "searches", lambda reader: found)
    monkeypatch.setattr(lookup, "find_search", damaged)
    (tmp_path / "ledger.db").touch()
    with pytest.raises(Exit):
        advance._advance_all(f"sqlite:///{tmp_path / 'ledger.db'}", as_json=True)
    assert asked == ids


_TELLS_WHAT_IT_IMPORTED = """
import sys
from orchestrator.lifecycle import create
from orchestrator.cli.main import run
from tests.orchestrator.tabled_parlay import snapshot_tabled_code
create.snapshot_code = snapshot_tabled_code
code = run(sys.argv[1:])
print(sorted({"ray", "mlflow", "deephyper", "torch", "deepspeed"} & set(sys.modules)))
sys.exit(code)
"""


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", ["run", "advance"])
def test_a_driver_on_slurm_imports_no_ray(bench, verb):
    path, one = bench.write(takes_s=0.2), ("--set", "search.max_trials=1")
    if verb == "advance":
        assert bench.parlay("submit", path, "--cron", *one).code == 0
    words = ["run", str(path), *one] if verb == "run" else ["advance", str(bench.the_search().path)]
    command = [sys.executable, "-P", "-c", _TELLS_WHAT_IT_IMPORTED, *words]
    done = subprocess.run(command, cwd=bench.place, env=bench.environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert record_of(bench.the_search()).trials
    assert bench.parlay("cancel", str(bench.the_search().path)).code == 0
