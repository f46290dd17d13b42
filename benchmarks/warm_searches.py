"""Benchmark of a search whose ranks are forked after their imports, against the same search started plain.

    python -m benchmarks.warm_searches [--launcher local|ray|slurm_pilot] [--rounds 5] [--measured-s 20]
        [--engine torch|deepspeed]

Prints one Markdown table. The search is quickstart.yaml over the five layouts that `make demo` tries, each with one
repeat, so that both ways run the same ten trials. Each round runs both ways, the first of them in turn; medians over
the rounds count. With --measured-s every trial measures the number of steps that takes so long in a typical trial.
slurm_pilot runs on a Slurm of its own on this machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.driver_speed import COMMAND
from orchestrator.config.loader import load_search_file
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import Observation, render_table
from slurm.sandbox.sandbox import SlurmSandbox
from trials.analysis.node_time import search_node_time
from trials.ledger.events import SearchRecord
from trials.ledger.journal import Journal, search_of
from trials.trial import Attempt, Outcome, utc_seconds

QUICKSTART = Path(__file__).parents[1] / "search_spaces" / "searches" / "quickstart.yaml"
LAUNCHERS = ("local", "ray", "slurm_pilot")
LAYOUTS = (
    Layout(tensor_parallel=2, pipeline_parallel=2, micro_batch_size=4, grad_accum_steps=4, pipeline_schedule="1f1b"),
    Layout(data_parallel=4, micro_batch_size=4, grad_accum_steps=1),
    Layout(data_parallel=4, micro_batch_size=2, grad_accum_steps=2),
    Layout(data_parallel=4, micro_batch_size=1, grad_accum_steps=4),
    Layout(tensor_parallel=4, micro_batch_size=8, grad_accum_steps=2),
)
"""The layouts that `make demo` tries, the baseline first."""
SEARCH = {
    "sampler": "grid",
    "max_trials": len(LAYOUTS),
    "parallel_trials": 1,
    "finalists": len(LAYOUTS),
    "finalist_repeats": 1,
    "finals": "fixed",
    "warm_start": "none",
}
"""Every layout is a finalist: which are the fastest is left to noise."""

MOST_TRIES = 3
"""Attempts at a round whose trials have to be the same."""
START = ("import", "rendezvous", "build")
RATIO_ASKED, START_ASKED = 0.55, 0.15
MEASURED_ASKED, MEASURED_LONG_ASKED, LONG_S = 0.4, 0.6, 20.0
"""Least shares of node-seconds that measure: of all trials, and of trials that measure for LONG_S seconds."""
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Cost:
    """Node-seconds of a search by what they were spent on; together they are all that it was charged.

    `trials` are kind and layout of its trials, sorted; `num_warm` is the number of those whose ranks were forked.
    """

    node_s: Mapping[str, float]
    trials: tuple[str, ...]
    num_warm: int
    median_step_s: float

    @property
    def total_s(self) -> float:
        return fsum(self.node_s.values())

    def share(self, *parts: str) -> float:
        return fsum(self.node_s.get(part, 0.0) for part in parts) / self.total_s


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder, _cluster(arguments.launcher) as environment:
        bench = Bench(Path(folder), arguments.launcher, arguments.engine, environment)
        if arguments.measured_s is not None:
            bench.measure_for(arguments.measured_s)
        rounds = [bench.round(number) for number in range(1, arguments.rounds + 1)]
    asked = MEASURED_LONG_ASKED if (arguments.measured_s or 0) >= LONG_S else MEASURED_ASKED
    print("\n".join(table([plain for plain, _ in rounds], [warm for _, warm in rounds], asked)))


class Bench:
    """Runs searches one after the other, each in a folder of its own."""

    def __init__(self, root: Path, launcher: str, engine: str, environment: Mapping[str, str]):
        own = {"PARLAY_HOME": str(root / "home"), "PYTHONPATH": os.getcwd()}
        inherited = {name: text for name, text in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
        self._root = root
        self._launcher = launcher
        self._engine = engine
        self._environment = {**inherited, **environment, **own}
        self._measure: dict[str, Any] = {}
        self._count = 0

    def measure_for(self, seconds: float) -> None:
        """Have each trial measure the number of steps that takes so long in the middle trial of a first search."""
        steps = max(9, round(seconds / self.run(is_warm=False).median_step_s))
        self._measure = {"min_steps": steps, "max_steps": steps, "finalist_time": "1s"}
        self._measure["time_limit"] = f"{round(120 + 5 * seconds)}s"

    def round(self, number: int) -> tuple[Cost, Cost]:
        """Run the search plain and warm, in this order in every other round.

        Once more where the trials differ: a run on a suspect node, which a disturbance may fake, is repeated.
        """
        ways = (False, True) if number % 2 else (True, False)
        for _ in range(MOST_TRIES):
            costs = {is_warm: self.run(is_warm) for is_warm in ways}
            plain, warm = costs[False], costs[True]
            print(f"round {number}: {plain.total_s:.1f} node-seconds plain, {warm.total_s:.1f} warm", file=sys.stderr)
            if plain.trials == warm.trials:
                return plain, warm
            print(f"{len(plain.trials)} and {len(warm.trials)} trials: run again", file=sys.stderr)
        raise SystemExit(f"the trials differ: plain {plain.trials}, warm {warm.trials}")

    def run(self, is_warm: bool) -> Cost:
        self._count += 1
        folder = self._root / str(self._count)
        folder.mkdir()
        self._write_files(folder, is_warm)
        command = [*COMMAND, "run", "search.yaml", "--quiet"]
        done = subprocess.run(command, cwd=folder, env=self._environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"parlay run left with {done.returncode}:\n{done.stdout}{done.stderr}")
        (path,) = folder.glob("runs/*/journal.jsonl")
        search = search_of(path, path.parent.name, Journal(path).read())
        assert search is not None
        return cost_of(search)

    def _write_files(self, folder: Path, is_warm: bool) -> None:
        spec = load_search_file(QUICKSTART)
        fixed = ("quickstart", "benchmark", spec.name, spec.model, spec.cluster, spec.global_batch_size)
        rows = [Observation(*fixed, replace(layout, engine=self._engine), "ok", 1.0) for layout in LAYOUTS]
        (folder / "table.csv").write_text(render_table(rows))
        file = yaml.safe_load(QUICKSTART.read_text())
        file["space"] = {"candidates": "table.csv"}
        file["baseline"]["engine"] = self._engine
        file["search"] = SEARCH
        file["measure"] |= {**self._measure, "early_stopping": False, "warm_start": "auto" if is_warm else False}
        file["tracking"] = {"enabled": False}
        file["launcher"] = {"kind": self._launcher, "slurm": {"poll_interval": "1s"}}
        (folder / "search.yaml").write_text(yaml.safe_dump(file))


def cost_of(search: SearchRecord) -> Cost:
    """Cost of a search. SystemExit where a trial was not measured or was tried more than once."""
    found = []
    for trial in search.trials:
        if len(trial.attempts) != 1 or (outcome := trial.attempts[0].outcome) is None or outcome.metrics is None:
            raise SystemExit(f"trial {trial.trial} was not measured at once: {trial.attempts}")
        found.append((trial.attempts[0], outcome))
    names = sorted(f"{trial.kind.value} {trial.layout.key}" for trial in search.trials)
    num_warm = sum(outcome.started_warm is True for _, outcome in found)
    return Cost(_node_s(search, found), tuple(names), num_warm, median(_step_s(outcome) for _, outcome in found))


def _node_s(search: SearchRecord, found: Sequence[tuple[Attempt, Outcome]]) -> dict[str, float]:
    """Node-seconds by part, by the clocks of the launcher and of rank 0; `other` is what is left."""
    charged = search_node_time(search)
    parts = {part.value: hours * _SECONDS_PER_HOUR for part, hours in charged.startup.items()}
    parts["measured"] = charged.measured * _SECONDS_PER_HOUR
    parts["idle pilot"] = charged.idle * _SECONDS_PER_HOUR
    parts["launch"] = fsum(a.num_nodes * (utc_seconds(o.started_at) - a.started_at) for a, o in found)
    parts["end"] = fsum(a.num_nodes * (a.ended_at - utc_seconds(o.ended_at)) for a, o in found)
    return parts | {"other": charged.total * _SECONDS_PER_HOUR - fsum(parts.values())}


def _step_s(outcome: Outcome) -> float:
    assert outcome.metrics is not None
    return outcome.metrics.step_time_s


def table(plain: Sequence[Cost], warm: Sequence[Cost], measured_asked: float) -> list[str]:
    """Markdown table of the medians over the rounds, each share that of a round's node-seconds."""
    ratio = median(w.total_s / p.total_s for p, w in zip(plain, warm, strict=True))
    least = median(w.node_s["measured"] / p.total_s for p, w in zip(plain, warm, strict=True))
    parts = [part for part in plain[0].node_s if any(cost.node_s[part] for cost in (*plain, *warm))]
    rows = [
        (
            "trials with forked ranks",
            *(f"{min(c.num_warm for c in way)} of {len(way[0].trials)}" for way in (plain, warm)),
            "",
        ),
        ("node-seconds", *(f"{median(cost.total_s for cost in way):.1f}" for way in (plain, warm)), ""),
        ("warm over plain", "", f"{ratio:.3f}", f"at most {RATIO_ASKED}"),
        ("the same without any start, warm-up and pause", "", f"{least:.3f}", ""),
        ("share of import, rendezvous and build", *_shares(plain, warm, *START), f"at most {START_ASKED}"),
        ("share that measures", *_shares(plain, warm, "measured"), f"at least {measured_asked}"),
        *((f"share of {part}", *_shares(plain, warm, part), "") for part in parts if part != "measured"),
    ]
    return [f"| {' | '.join(row)} |" for row in (("", "plain", "warm", "asked of warm"), ("---",) * 4, *rows)]


def _shares(plain: Sequence[Cost], warm: Sequence[Cost], *parts: str) -> tuple[str, str]:
    of_plain, of_warm = (f"{median(cost.share(*parts) for cost in way):z.3f}" for way in (plain, warm))
    return of_plain, of_warm


@contextmanager
def _cluster(launcher: str) -> Iterator[Mapping[str, str]]:
    """Environment of the launcher's commands; with slurm_pilot that of a new Slurm with a node of four CPUs."""
    if launcher != "slurm_pilot":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="pl-", dir="/tmp") as folder:
        cluster = SlurmSandbox(Path(folder) / "s", nodes=1, cpus_per_node=4, accounting=True)
        cluster.start()
        try:
            yield cluster.environment
        finally:
            cluster.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measured-s", type=float, help="seconds that a typical trial measures")
    parser.add_argument("--engine", choices=("torch", "deepspeed"), default="torch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
