"""Benchmark of the driver: cost by number of trials, against other libraries, and on the machine that it runs on.

    python -m benchmarks.driver [--searches 50] [--trials 60] [--in-flight 200] [--noop 300] [--login | --actors 50]
        [--json]

The first lines are of a service on a simulated cluster (benchmarks/driver_on_fake.py): driver CPU, bytes of ledger and
folders per trial, by number of ended trials, and Slurm commands. Then `--noop` trials that do nothing, driven by
Parlay, submitit and Ray Tune (benchmarks/driver_on_slurm.py), on a real Slurm that this starts; 0 skips them. `--login`
measures only a driver on a login node (benchmarks/driver_on_login.py); `--actors` only the memory of a real service
with that many searches, each an actor of Ray (benchmarks/driver_in_ray.py).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import driver_in_ray, driver_on_login, driver_on_slurm
from benchmarks.driver_on_fake import Load, Sample, Service
from slurm.sandbox.sandbox import SlurmSandbox

FEWER_IN_FLIGHT = (20, 100)
"""Loads measured in addition, to see whether more trials in flight cost more Slurm commands."""

QUESTIONS = ("squeue", "sacct")
"""Polling commands; sbatch, and scontrol of an ended job, run once per trial."""


def main() -> None:
    arguments = _arguments()
    for line in lines(arguments):
        print(json.dumps(line) if arguments.json else _readable(line), flush=True)


def lines(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measurements, as they become available."""
    if arguments.login:
        with _sandbox() as environment, tempfile.TemporaryDirectory(prefix="parlay-login-") as folder:
            yield from driver_on_login.lines(Path(folder), environment)
        return
    if arguments.actors:
        with _sandbox(nodes=1, cpus_per_node=2) as environment, tempfile.TemporaryDirectory(prefix="pa-") as folder:
            yield from driver_in_ray.lines(Path(folder), environment, arguments.actors)
        return
    yield from service_lines(Load(arguments.searches, arguments.trials, arguments.in_flight))
    for in_flight in FEWER_IN_FLIGHT:
        yield _totals_in_subprocess(Load(arguments.searches, 4, in_flight))
    if arguments.noop:
        with _sandbox() as environment:
            found = [driver_on_slurm.measured(what, arguments.noop, environment) for what in driver_on_slurm.PROGRAMS]
        yield from compare_drivers(found)


def service_lines(load: Load) -> Iterator[dict[str, Any]]:
    """Line for the first hundred trials and for each further three hundred; then one for all."""
    with tempfile.TemporaryDirectory(prefix="parlay-scale-") as folder:
        samples = list(Service(Path(folder), load).run())
    windows = [window for window in pairwise(samples) if window[1].trials > window[0].trials]
    for before, after in windows:
        yield {"what": "window", "from": before.trials, "to": after.trials} | _per_trial(before, after)
    first, last = samples[0], samples[-1]
    yield {
        "what": "service",
        "searches": load.searches,
        "in_flight": load.in_flight,
        "trials": last.trials,
        **_per_trial(first, last),
        "growth": _growth(windows),
        "shares": _shares(first, last),
        "questions_per_minute": round(60 * _count(QUESTIONS, first, last) / (last.simulated_s - first.simulated_s), 2),
        "commands_per_trial": round(_count(set(last.calls) - {*QUESTIONS}, first, last) / last.trials, 2),
        "peak_rss_mib": round(_peak_rss_mib()),
    }


def _totals_in_subprocess(load: Load) -> dict[str, Any]:
    """Line for all trials, from a separate process, so that its memory is that of this load only."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_totals, load).result()


def _totals(load: Load) -> dict[str, Any]:
    *_, whole = service_lines(load)
    return whole


def _peak_rss_mib() -> float:
    """Peak memory of this process; getrusage would include the parent's before the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def compare_drivers(found: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Lines of several drivers with milliseconds per trial, and relative to Parlay's."""
    own = next(line["cpu_s"] / line["trials"] for line in found if line["what"] == "parlay")
    for line in found:
        each, commands = (line[name] / line["trials"] for name in ("cpu_s", "commands_cpu_s"))
        figures = {"cpu_ms_per_trial": 1000 * each, "commands_ms_per_trial": 1000 * commands, "over_parlay": each / own}
        yield {**line, **{name: round(figure, 2) for name, figure in figures.items()}}


def _per_trial(before: Sample, after: Sample) -> dict[str, Any]:
    trials = after.trials - before.trials
    return {
        "cpu_ms_per_trial": round(1000 * (after.cpu_s - before.cpu_s) / trials, 2),
        "ledger_bytes_per_trial": (after.ledger_bytes - before.ledger_bytes) // trials,
        "folder_bytes_per_trial": (after.folder_bytes - before.folder_bytes) // trials,
    }


def _growth(windows: Sequence[tuple[Sample, Sample]]) -> float | None:
    """CPU per trial of the last window over the first, among windows in which trials both begin and end.

    None where these are the same window. Other windows are not comparable: the first have submissions only, the last
    fewer and fewer trials.
    """
    whole = [window for window in windows if _num_submitted(*window) and window[1].ended > window[0].ended]
    if len(whole) < 2:
        return None
    first, last = ((w[1].cpu_s - w[0].cpu_s) / (w[1].trials - w[0].trials) for w in (whole[0], whole[-1]))
    return round(last / first, 2)


def _shares(first: Sample, last: Sample) -> dict[str, float]:
    """Shares of a driver's CPU time by part, the largest first; `loop` is the rest."""
    spent, whole = last.parts_s - first.parts_s, last.cpu_s - first.cpu_s
    return {part: round(seconds / whole, 2) for part, seconds in spent.most_common()}


def _num_submitted(before: Sample, after: Sample) -> int:
    return _count(["sbatch"], before, after)


def _count(commands: Sequence[str] | set[str], before: Sample, after: Sample) -> int:
    return sum(after.calls[command] - before.calls[command] for command in commands)


@contextmanager
def _sandbox(nodes: int = 4, cpus_per_node: int = 16) -> Iterator[Mapping[str, str]]:
    """Slurm with accounting as a context; yields the environment of its commands."""
    with tempfile.TemporaryDirectory(prefix="pl-", dir="/tmp") as folder:
        cluster = SlurmSandbox(Path(folder) / "s", nodes, cpus_per_node, accounting=True)
        cluster.start()
        try:
            yield cluster.environment
        finally:
            cluster.stop()


def _arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--searches", type=int, default=50, help="of the service")
    parser.add_argument("--trials", type=int, default=60, help="of each search")
    parser.add_argument("--in-flight", type=int, default=200, help="trials at once, of all searches together")
    parser.add_argument("--noop", type=int, default=300, help="trials that do nothing, of each library")
    parser.add_argument("--login", action="store_true", help="measure a driver as a login node has it")
    parser.add_argument("--actors", type=int, default=0, help="searches of a service, each an actor of Ray: its memory")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    return parser.parse_args(words)


def _readable(line: Mapping[str, Any]) -> str:
    head = str(line.get("what", line.get("phase")))
    rest = {name: value for name, value in line.items() if name not in ("what", "phase")}
    return f"{head:10}" + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rest.items())


if __name__ == "__main__":
    main()
