"""User-level searches on a real Slurm, whose trials take their step times from a table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle import create
from orchestrator.planning.candidates import candidates_of
from slurm.sandbox.daemons import running_pids
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import search_file, search_text, until
from tests.orchestrator import tabled_parlay
from tests.orchestrator.cli.parlay import COMMAND, Answer, environment, parlay_here
from tests.slurm.sandboxes import FaultySandbox
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.fold import fold
from trials.ledger.journal import Journal

SEARCH = search_text(
    name="tabled",
    cluster={"accelerator": "cpu", "gpus_per_node": 2, "num_nodes": 1},
    global_batch_size=32,
    space={
        "pipeline_parallel": [1, 2],
        "micro_batch_size": [1, 2, 4, 8, 16, 32],
        "activation_checkpointing": ["none", "full"],
    },
    search={"sampler": "grid", "max_trials": 30, "parallel_trials": 4, "finalists": 0},
    measure={"time_limit": "2m"},
    tracking={"enabled": False},
    launcher={"kind": "slurm", "slurm": {"poll_interval": "1s"}},
)
ALL = "all"


@dataclass(frozen=True)
class Bench:
    """A place for searches beside a cluster; `table` says how long each layout's steps and its trial take."""

    place: Path
    cluster: FaultySandbox
    variables: Mapping[str, str] = field(default_factory=dict)

    def write(
        self,
        takes_s: float = 0.5,
        free: int | None = None,
        held: Mapping[int, str] = MappingProxyType({}),
        **changes: Any,
    ) -> Path:
        """SEARCH with these changes, and a table in which every one of its layouts has a step time of its own.

        A trial takes `takes_s` seconds. Those after the first `free` do not end before `open_gate`: however long a test
        takes, its search is not over meanwhile. `held` are numbers of layouts, as the grid has them, whose trials do
        not end before the `open_gate` of this name.
        """
        path = search_file(self.place, SEARCH, **changes)
        self._table.write_text("{}")
        layouts = [layout.key for layout in candidates_of(load_search_file(path)).layouts]
        # In an order that is not the grid's, so that the best is neither the first nor the last.
        rows: list[dict[str, Any]] = [
            {"step_time_s": 0.5 + 37 * number % 101 / 100, "takes_s": takes_s} for number in range(len(layouts))
        ]
        kept = {} if free is None else dict.fromkeys(range(free, len(rows)), ALL)
        for number, gate in {**kept, **held}.items():
            rows[number]["waits_for"] = str(self._gate(gate))
        self._table.write_text(json.dumps(dict(zip(layouts, rows, strict=True))))
        return path

    def open_gate(self, gate: str = ALL) -> None:
        """Let held trials of `write` end: all of them, or those of this name."""
        self._gate(gate).touch()

    def _gate(self, gate: str) -> Path:
        return self.place / f"open_gate-{gate}"

    @property
    def _table(self) -> Path:
        return self.place / "table.json"

    @property
    def environment(self) -> dict[str, str]:
        table = {"PARLAY_TEST_TABLE": str(self._table)}
        return environment() | self.cluster.environment | table | dict(self.variables)

    def parlay(self, *words: str | Path) -> Answer:
        """Run one command in this process; its searches are tabled ones."""
        with mock.patch.object(create, "snapshot_code", tabled_parlay.snapshot_tabled_code):
            return parlay_here(*words, cwd=self.place, variables=self.environment)

    def start(self, *words: str | Path, tabled: bool = False) -> subprocess.Popen[bytes]:
        """Start the real command, or the one whose searches are tabled, and go on; its words go to driver.out."""
        command = tabled_parlay.COMMAND if tabled else COMMAND
        with open(self.place / "driver.out", "ab") as out:
            return subprocess.Popen(
                [*command, *map(str, words)], cwd=self.place, env=self.environment, stdout=out, stderr=out
            )

    def the_search(self) -> SearchFolder:
        """Wait until the only search here can be resumed and return it."""
        [path] = until(lambda: [f.parent for f in self.place.glob("runs/*/journal.jsonl") if f.stat().st_size], bool)
        return SearchFolder(path)

    def jobs(self, name: str, *states: str) -> dict[str, str]:
        """Ids and states of the jobs whose name begins so, of these states, or of all that the controller knows."""
        wanted = f"--states={','.join(states) or 'all'}"
        lines = answered(self.cluster, "squeue", "--noheader", wanted, "--format=%A|%T|%j").splitlines()
        rows = [line.split("|") for line in lines]
        return {job: state for job, state, job_name in rows if job_name.startswith(name)}

    def processes_of(self, job: str) -> list[int]:
        """Processes of a job that have its id in their environment: script, srun and ranks."""
        wanted = (job, self.cluster.environment["SLURM_CONF"])
        of = {pid: _environment_of(pid) for pid in running_pids()}
        return [pid for pid, env in of.items() if (env.get("SLURM_JOB_ID"), env.get("SLURM_CONF")) == wanted]

    def steps_of(self, job: str) -> list[int]:
        """slurmstepd processes of the job."""
        return [pid for pid in running_pids() if _is_step_of(pid, job, self.cluster)]

    def environment_of(self, job: str) -> dict[str, str]:
        """Environment of a process of a running job; {} if none runs."""
        return next((_environment_of(pid) for pid in self.processes_of(job)), {})


def record_of(folder: SearchFolder) -> SearchRecord:
    """The search's current record, from its journal."""
    record = fold(folder.search_id, Journal(folder.journal).read())
    assert record is not None
    return record


def num_ended(folder: SearchFolder) -> int:
    return sum(trial.state.is_ended for trial in record_of(folder).trials)


def answered(cluster: SlurmSandbox, *command: str) -> str:
    """Output of a Slurm command, retried while the controller is busy: no answer is not "none"."""
    return until(lambda: cluster.ask(*command), lambda done: done.returncode == 0).stdout


def ids_of_jobs(cluster: SlurmSandbox) -> set[str]:
    """All jobs that the controller knows, including those that have ended."""
    return set(answered(cluster, "squeue", "--noheader", "--states=all", "--format=%A").split())


def _is_step_of(pid: int, job: str, cluster: SlurmSandbox) -> bool:
    try:
        command, place = Path(f"/proc/{pid}/cmdline").read_text(errors="replace"), Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return False  # it has ended
    return command.startswith(f"slurmstepd: [{job}.") and place.is_relative_to(cluster.paths.folder)


def _environment_of(pid: int) -> dict[str, str]:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}  # it has ended
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)
