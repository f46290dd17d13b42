"""Benchmark of samplers in real searches, on this machine or wherever the search file says.

    python -m benchmarks.real_search SEARCH.yaml [--sampler guided,deephyper] [--seeds 5] [--launcher local]
        [--set KEY=VALUE] [--json]

One independent search of each sampler and seed, the samplers in turn. A layout's value is the median of all its runs in
all of these searches, since runs differ: a search is near the best once it has tried a layout whose median is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from search_spaces.tables.measured_table import Observation, read_table
from trials.files.folders import SearchFolder

_NEAR = {"2pct": 0.02, "5pct": 0.05, "10pct": 0.1}


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="parlay-real-") as folder:
        runs = list(_runs(arguments, Path(folder)))
    lines = [line_of(run, typical_s(runs)) for run in runs]
    for line in [*lines, *summaries(lines)]:
        print(json.dumps(line) if arguments.json else _readable(line))


@dataclass(frozen=True)
class Run:
    """Search with its trials in launch order, without finalists."""

    sampler: str
    seed: int
    end_reason: str
    trials: tuple[Observation, ...]
    repeats: tuple[Observation, ...] = ()


def typical_s(runs: Iterable[Run]) -> dict[str, float]:
    """Median step time of each layout that ran in any search."""
    by_layout: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for row in (*run.trials, *run.repeats):
            if row.step_time_s is not None:
                by_layout[row.layout.key].append(row.step_time_s)
    return {key: median(times) for key, times in by_layout.items()}


def line_of(run: Run, step_s: Mapping[str, float]) -> dict[str, Any]:
    """Cost of a search, in all and until it was near the best; null where it never was. `regret` is that of its best
    trial."""
    slower = [step_s.get(row.layout.key, float("inf")) / min(step_s.values()) - 1 for row in run.trials]
    node_s = [row.duration_s * row.cluster.num_nodes for row in run.trials]
    line: dict[str, Any] = {
        "sampler": run.sampler,
        "seed": run.seed,
        "end_reason": run.end_reason,
        "trials": len(run.trials),
        "node_seconds": round(sum(node_s), 1),
        "regret": round(min(slower), 4),
    }
    for name, share in _NEAR.items():
        count = next((number for number, found in enumerate(slower, start=1) if found <= share), None)
        line[f"trials_to_{name}"] = count
        line[f"node_seconds_to_{name}"] = None if count is None else round(sum(node_s[:count]), 1)
    return line


def summaries(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Line per sampler; a search that was never near the best counts with its whole cost."""
    for sampler in dict.fromkeys(line["sampler"] for line in lines):
        found = [line for line in lines if line["sampler"] == sampler]
        summary: dict[str, Any] = {"summary": True, "sampler": sampler, "searches": len(found)}
        for name in ("trials", "node_seconds", "regret"):
            summary[name] = round(fmean(line[name] for line in found), 4)
        for near in _NEAR:
            summary[f"reached_{near}"] = sum(line[f"trials_to_{near}"] is not None for line in found)
            for what in ("trials", "node_seconds"):
                taken = [
                    line[what] if line[f"{what}_to_{near}"] is None else line[f"{what}_to_{near}"] for line in found
                ]
                summary[f"{what}_to_{near}"] = round(fmean(taken), 4)
        yield summary


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("search", type=Path, metavar="SEARCH.yaml")
    parser.add_argument("--sampler", default="guided,deephyper", help="names of samplers; several with commas")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 1, 2, ... of each sampler")
    parser.add_argument("--launcher", default="local", help="of the search file's launchers")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the search file, for all")
    parser.add_argument("--keep", type=Path, help="a folder for the searches' tables")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args()


def _runs(arguments: argparse.Namespace, folder: Path) -> Iterator[Run]:
    samplers = arguments.sampler.split(",")
    for seed in range(1, arguments.seeds + 1):
        # The first sampler alternates, so that a machine that slows down affects all alike.
        for sampler in samplers if seed % 2 else reversed(samplers):
            yield _run(arguments, folder / f"{sampler}-{seed}", sampler, seed)


def _run(arguments: argparse.Namespace, folder: Path, sampler: str, seed: int) -> Run:
    settings = {"search.sampler": sampler, "search.seed": seed, "search.warm_start": "none"}
    settings["tracking.enabled"] = "false"
    command = [str(Path(sys.executable).with_name("parlay")), "run", str(arguments.search), "--json"]
    command += ["--launcher", arguments.launcher, "--work-dir", str(folder)]
    pairs = [*arguments.set, *(f"{key}={value}" for key, value in settings.items())]
    command += [word for pair in pairs for word in ("--set", pair)]
    environment = os.environ | {"PARLAY_HOME": str(folder / "home")}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    table = SearchFolder(folder / result["search_id"]).measured
    rows = read_table(table).require_valid().observations
    if arguments.keep:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        (arguments.keep / f"{sampler}-{seed}.csv").write_bytes(table.read_bytes())
    trials, repeats = (tuple(row for row in rows if (row.kind == "search") is own) for own in (True, False))
    return Run(sampler, seed, result["end_reason"], trials, repeats)


def _readable(line: Mapping[str, Any]) -> str:
    head = f"= {line['sampler']:10} {line['searches']} searches" if "summary" in line else f"{line['sampler']:10}"
    rest = {name: value for name, value in line.items() if name not in ("summary", "sampler", "searches")}
    return f"{head}  " + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rest.items())


if __name__ == "__main__":
    main()
