"""Planted secrets, searched for in everything that a real search writes or prints."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm.sandbox.daemons import running_pids
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import COMMAND, command_line, environment
from tests.orchestrator.slurm_searches import Bench, until

SECRETS = {
    "MLFLOW_TRACKING_PASSWORD": "hunter2-tracking",
    "PGPASSWORD": "hunter2-database",
    "HF_TOKEN": "hunter2-token",
    "AWS_SECRET_ACCESS_KEY": "hunter2-cloud",
    "PARLAY_TEST_WEBHOOK": "https://hooks.example/hunter2-webhook",
}
MARK = "hunter2"
"""Part of every planted secret, and of nothing else."""


@dataclass
class CommandLines:
    """Collects the command lines of all processes, ours and others'."""

    seen: set[bytes] = field(default_factory=set)

    def look(self) -> set[bytes]:
        """Command lines seen so far."""
        self.seen |= {command_line(pid) for pid in running_pids()}
        return self.seen

    def look_until_the_end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Look until the process has ended, and return its exit code."""
        while True:
            self.look()
            with suppress(subprocess.TimeoutExpired):
                return process.wait(0.1)

    @property
    def with_secrets(self) -> list[bytes]:
        return [line for line in self.seen if MARK.encode() in line]


def files_below(*roots: Path) -> Iterator[Path]:
    return (path for root in roots for path in root.rglob("*"))


def with_secrets(*roots: Path) -> list[Path]:
    return [path for path in files_below(*roots) if path.is_file() and MARK.encode() in path.read_bytes()]


def open_to_others(*roots: Path) -> list[Path]:
    """Paths that anyone but their owner can read, write or enter; links and sockets have no mode of their own."""
    found = (path for path in files_below(*roots) if stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR))
    return [path for path in found if path.stat().st_mode & 0o077]


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.bad_input(47)
@pytest.mark.security("secrets", "private_files")
def test_a_real_search_keeps_no_secret_and_shows_its_files_to_nobody(tmp_path: Path, own_home: Path):
    """A real training with MLflow, by a user with a permissive umask and an environment full of secrets."""
    path = search_file(tmp_path, TINY_SEARCH, search={"max_trials": 1})
    lines = CommandLines()
    command = ["sh", "-c", 'umask 000; exec "$@"', "sh", *COMMAND, "run", str(path)]
    with (
        open(tmp_path / "words", "wb") as words,
        subprocess.Popen(
            command, cwd=tmp_path, env=environment() | SECRETS, stdin=subprocess.DEVNULL, stdout=words, stderr=words
        ) as search,
    ):
        code = lines.look_until_the_end_of(search)
    assert code == 0, (tmp_path / "words").read_text()
    assert any(b"trials.train" in line for line in lines.seen), "ranks were seen"
    assert lines.with_secrets == []
    assert {"journal.jsonl", "outcome.r0.json", "recipe.yaml"} <= {p.name for p in files_below(tmp_path)}
    assert {"ledger.db", "mlflow.db"} <= {p.name for p in files_below(own_home)}
    assert with_secrets(tmp_path, own_home) == []
    assert open_to_others(tmp_path / "runs", own_home) == []


@pytest.mark.processes
@pytest.mark.timeout(400)
@pytest.mark.security("secrets", "private_files", "environment")
def test_slurm_is_shown_no_secret(tmp_path: Path, own_home: Path, slurm_sandbox: SlurmSandbox, monkeypatch):
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    bench, lines = Bench(tmp_path, slurm_sandbox), CommandLines()
    bench.write(free=0, search={"max_trials": 1})
    driver = bench.start("run", "search.yaml", tabled=True)
    [job] = until(lambda: bench.jobs("tabled-", "RUNNING"), bool)
    until(lines.look, lambda seen: any(b"srun" in line for line in seen))
    shown = slurm_sandbox.ask("scontrol", "show", "job", job).stdout
    listed = slurm_sandbox.ask("squeue", "--noheader", "--format=%all", f"--jobs={job}").stdout
    bench.open_gate()
    assert lines.look_until_the_end_of(driver) == 0, (tmp_path / "driver.out").read_text()
    assert "JobName=tabled-" in shown
    assert MARK not in shown + listed
    assert lines.with_secrets == []
    assert "job.sh" in {p.name for p in files_below(tmp_path)}
    assert with_secrets(tmp_path, own_home) == []
    assert open_to_others(tmp_path / "runs", own_home) == []
