"""Stress test: searches on a real Slurm under random disturbances, and checks of their records afterwards.

    python -m benchmarks.disturbed --minutes 60 --seed 1

One search is driven from a terminal and four by a service with threads; each is replaced by another when it ends.
Trials take their step times from a table. A separate process keeps opening and closing the ledger. After every kill
SQLite checks the ledger and MLflow's file. At the end running searches may finish, and then the journals, the ledger,
Slurm's accounting and MLflow must agree. Each disturbance is a line on stderr; the last line on stdout counts them and
the comparisons. Exits with 1 and the contradictions where there are any. Needs Slurm's packages (`make servers`).
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.output import Line, arguments_of
from dashboards.mlflow.points import trial_points
from dashboards.mlflow.runs import child_view, parent_view
from dashboards.mlflow.sync import MlflowSync
from dashboards.schema import TrackingSection
from orchestrator.lifecycle.logs import ListSink, sending_to
from orchestrator.lifecycle.mlflow_resync import resync
from slurm.sandbox.sandbox import SLURMCTLD
from tests.kit import ABSENT, until
from tests.orchestrator.service.services import ask
from tests.orchestrator.slurm_searches import Bench, record_of
from tests.slurm.sandboxes import sandbox
from trials.files import sqlite_file
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.reader import LedgerReader

Records = Mapping[str, SearchRecord]

READER = """\
import contextlib, os, sqlite3, sys, time
while True:
    time.sleep(0.02)
    if os.path.exists(sys.argv[1]):
        with contextlib.closing(sqlite3.connect(sys.argv[1])) as connection:
            with contextlib.suppress(sqlite3.OperationalError):  # no tables yet, or busy
                connection.execute("SELECT count(*) FROM attempt").fetchone()
"""
LONGEST_END_S = 900.0
"""A submission whose driver was killed is looked for at least 60 s, a requeued job waits for two minutes."""
AN_HOUR = {"kill_driver": 30, "restart_service": 8, "restart_controller": 6, "requeue": 15, "suspend": 15}
AN_HOUR |= {"cancel_job": 15}


@dataclass(frozen=True)
class Plan:
    """Numbers of disturbances, at random times within some seconds, and the load: searches that the service drives at
    once beside the one of a terminal, their trials, and seconds per trial."""

    seconds: float
    seed: int
    times: Mapping[str, int]
    served: int = 4
    trials: int = 24
    takes_s: float = 8.0


@dataclass
class Stage:
    """Targets of the disturbances: searches, the driver of a terminal, the service."""

    bench: Bench
    plan: Plan
    home: Path
    random: random.Random
    searches: list[SearchFolder] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    driven: SearchFolder | None = None
    happened: Counter[str] = field(default_factory=Counter)
    checks: int = 0

    # -- what goes on

    def go_on_until(self, until_s: float) -> None:
        """Start a search wherever one has ended, until this time."""
        while True:
            if "driver" not in self.processes or self.processes["driver"].poll() is not None:
                self._begin_in_terminal()
            served = [search for search in self.searches if search != self.driven and not _is_over(search)]
            if len(served) < self.plan.served:
                self._submit()
            if (left_s := until_s - time.monotonic()) <= 0:
                return
            time.sleep(min(1.0, left_s))

    def start_service(self) -> None:
        self._about.unlink(missing_ok=True)  # one that was killed leaves it
        self._start("service", "serve", "--executor", "process")
        until(self._about.exists, bool)

    def _begin_in_terminal(self) -> None:
        before = self._folders()
        self._start("driver", "run", self._search_file())
        driver = self.processes["driver"]
        begun = until(lambda: self._folders() - before or driver.poll() is not None, bool, 300.0)
        if isinstance(begun, bool):  # rejected, for example without a controller: retried in the next turn
            self.happened["refused_run"] += 1
            return
        self.driven = SearchFolder(begun.pop())
        self.searches.append(self.driven)

    def _submit(self) -> None:
        wanted = {"yaml": self._search_file().read_text(), "directory": str(self.bench.place)}
        status, answer = ask(json.loads(self._about.read_text()), "POST", "/v1/searches", wanted)
        if status != 201:
            raise RuntimeError(str(answer))
        self.searches.append(SearchFolder(Path(answer["folder"])))

    def _search_file(self) -> Path:
        counts = {"max_trials": self.plan.trials, "parallel_trials": 2}
        return self.bench.write(takes_s=self.plan.takes_s, search=counts, tracking=ABSENT)

    def _folders(self) -> set[Path]:
        journals = self.bench.place.glob("runs/*/journal.jsonl")
        return {journal.parent for journal in journals if journal.stat().st_size}

    def _start(self, name: str, *words: str | Path) -> None:
        self.processes[name] = self.bench.start(*words, tabled=True)

    @property
    def _about(self) -> Path:
        return self.home / "service" / "service.json"

    # -- what happens to it

    def kill_driver(self) -> str:
        if self.driven is None:
            return "none"
        self._stop("driver", signal.SIGKILL)
        self._start("driver", "resume", self.driven.path)
        return self.driven.search_id

    def restart_service(self) -> str:
        how = self.random.choice((signal.SIGKILL, signal.SIGTERM))
        self._stop("service", how)
        self.start_service()
        return how.name

    def restart_controller(self) -> str:
        self.bench.cluster.kill(SLURMCTLD, signal.SIGTERM)
        time.sleep(self.random.uniform(0, 10))
        self.bench.cluster.start_daemon(SLURMCTLD)
        return ""

    def requeue(self) -> str:
        """Requeue as an operator would, without Slurm's two-minute delay of such a job."""
        return self._to_a_job("update JobId={} Requeue=1", "requeue {}", "update JobId={} StartTime=now+1")

    def suspend(self) -> str:
        job = self._to_a_job("suspend {}")
        time.sleep(self.random.uniform(1, 10))
        self.bench.cluster.ask("scontrol", "resume", job)
        return job

    def cancel_job(self) -> str:
        job = self._to_a_job()
        self.bench.cluster.ask("scancel", job)
        return job

    def _to_a_job(self, *commands: str) -> str:
        """Give commands of scontrol for a running job, refused where it has just ended; return the job."""
        job = self.random.choice(sorted(until(lambda: self.bench.jobs("tabled-", "RUNNING"), bool)))
        for command in commands:
            self.bench.cluster.ask("scontrol", *command.format(job).split())
        return job

    def _stop(self, name: str, how: signal.Signals) -> None:
        """End a process and check the files; RuntimeError where SQLite finds a damaged one."""
        self.processes[name].send_signal(how)
        self.processes[name].wait(120)
        for path in (self.home / "ledger.db", self.home / "mlflow.db"):
            if path.exists() and (found := sqlite_file.damage(path)) is not None:
                raise RuntimeError(f"{path}: {found}")
        self.checks += 1

    # -- its end

    def end(self) -> None:
        """Return when every search has ended and has no driver any more."""
        until(lambda: all(map(_is_over, self.searches)), bool, LONGEST_END_S)
        self.processes["driver"].wait(120)
        self._stop("service", signal.SIGTERM)

    def kill(self) -> None:
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()


def _is_over(search: SearchFolder) -> bool:
    return record_of(search).state.is_ended


def run(plan: Plan) -> Line:
    """Run the plan; return counts of disturbances and comparisons, and every contradiction."""
    with tempfile.TemporaryDirectory(prefix="parlay-disturbed-") as folder, sandbox(accounting=True) as cluster:
        home = Path(folder) / "home"
        bench = Bench(Path(folder), cluster, {"PARLAY_HOME": str(home)})
        stage = Stage(bench, plan, home, random.Random(plan.seed))
        reader = subprocess.Popen([sys.executable, "-I", "-c", READER, str(home / "ledger.db")])
        began = time.monotonic()
        try:
            _disturb(stage)
            contradictions = [] if reader.poll() is None else ["the reader of the ledger died"]
        except BaseException:
            print((bench.place / "driver.out").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            stage.kill()
            reader.kill()
            reader.wait()
        records = {search.search_id: record_of(search) for search in stage.searches}
        for compare in (_with_ledger, _with_slurm, _with_mlflow):
            contradictions += compare(stage, records)
        trials = [trial for record in records.values() for trial in record.trials]
        return {
            "minutes": round((time.monotonic() - began) / 60, 1),
            "happened": dict(stage.happened),
            "file_checks": stage.checks,
            "searches": len(records),
            "trials": len(trials),
            "attempts": sum(len(trial.attempts) for trial in trials),
            "trials_by_state": dict(Counter(trial.state.value for trial in trials)),
            "contradictions": contradictions,
        }


def _disturb(stage: Stage) -> None:
    names = [name for name, count in stage.plan.times.items() for _ in range(count)]
    stage.random.shuffle(names)
    times = sorted(stage.random.uniform(0, stage.plan.seconds) for _ in names)
    stage.start_service()
    stage.go_on_until(0.0)
    began = time.monotonic()
    for at_s, name in zip(times, names, strict=True):
        stage.go_on_until(began + at_s)
        what = getattr(stage, name)()
        stage.happened[name] += 1
        print(f"{time.monotonic() - began:7.1f} s  {name} {what}", file=sys.stderr, flush=True)
    stage.go_on_until(began + stage.plan.seconds)
    stage.end()


# -- what must be true


def _with_ledger(stage: Stage, records: Records) -> list[str]:
    with closing(LedgerReader(f"sqlite:///{stage.home / 'ledger.db'}")) as reader:
        known = {summary.search_id for summary in reader.searches()}
        wrong = [f"ledger: searches {sorted(known ^ set(records))}"] if known != set(records) else []
        both = known & set(records)
        return wrong + [f"ledger: {name} is not its journal" for name in both if reader.search(name) != records[name]]


def _with_slurm(stage: Stage, records: Records) -> list[str]:
    """Check that every accounted job belongs to one attempt, and every launched attempt has its job."""
    recorded = {
        (attempt.job_id, f"{search_id}.{trial.trial}.{attempt.attempt}")
        for search_id, record in records.items()
        for trial in record.trials
        for attempt in trial.attempts
        if attempt.job_id is not None
    }
    with suppress(AssertionError):  # accounting lags behind
        until(lambda: _accounted(stage), lambda jobs: jobs == recorded)
    if (jobs := _accounted(stage)) != recorded:
        return [f"sacct: without an attempt {sorted(jobs - recorded)}, without a job {sorted(recorded - jobs)}"]
    return [f"{name}: still in flight" for name, record in records.items() if record.in_flight]


def _accounted(stage: Stage) -> set[tuple[str, str]]:
    columns = ("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobIDRaw,JobName")
    lines = stage.bench.cluster.ask(*columns, "--starttime=now-3hours").stdout.splitlines()
    return {(job, name) for job, name in (line.split("|") for line in lines) if name.startswith("tabled-")}


def _with_mlflow(stage: Stage, records: Records) -> list[str]:
    """Check that MLflow has one run per search and per trial, with the same end and numbers as the record, after
    `parlay sync`."""
    from mlflow.tracking import MlflowClient

    wrong, uri, sink = [], f"sqlite:///{stage.home / 'mlflow.db'}", ListSink()
    client, tracking = MlflowClient(uri), MlflowSync(uri, TrackingSection().experiment, stage.home)
    [experiment] = [e.experiment_id for e in client.search_experiments() if e.name != "Default"]
    for search in stage.searches:
        record, name = records[search.search_id], search.search_id
        with sending_to(sink):
            wrong += [f"mlflow: {name}: not sent: {part}" for part in resync(search, tracking).unsent]
        runs = client.search_runs([experiment], f"tags.`parlay.search_id` = '{name}'", max_results=1000)
        views = [parent_view(record), *(child_view(record, trial) for trial in record.trials)]
        wanted = Counter((view.trial, view.status.value.upper()) for view in views)
        found = Counter((run.data.tags.get("parlay.trial"), run.info.status) for run in runs)
        if found != wanted:
            wrong.append(f"mlflow: {name}: {dict(found - wanted)} in place of {dict(wanted - found)}")
        numbers = {run.data.tags.get("parlay.trial"): run.data.metrics for run in runs}
        wrong += [
            f"mlflow: {name}.{trial.trial}: {point.key} is not {point.value}"
            for trial in record.trials
            for point in trial_points(record, trial)
            if numbers.get(trial.trial, {}).get(point.key) != point.value
        ]
    return wrong + sink.messages


def main() -> int:
    wanted = arguments_of(__doc__, minutes=60.0, seed=1)
    times = {name: max(1, round(count * wanted.minutes / 60)) for name, count in AN_HOUR.items()}
    result = run(Plan(60 * wanted.minutes, wanted.seed, times))
    print(json.dumps(result))
    return 1 if result["contradictions"] else 0


if __name__ == "__main__":
    sys.exit(main())
