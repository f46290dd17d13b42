"""Benchmark of the driver: its cost by the number of trials, on a simulated cluster (benchmarks/driver_on_fake.py).

    python -m benchmarks.driver [--searches 50] [--trials 60] [--in-flight 200] [--json]

Lines of a service for the first hundred trials (begun or ended) and for each further three hundred: CPU and bytes of
ledger and folders a trial. Then lines for all trials, the later ones with fewer in flight: `growth`, the CPU a trial of
the last window over that of the first in which trials both begin and end; `shares` of the CPU by part; Slurm's
questions (squeue, sacct) a simulated minute and other commands a trial; memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path

from benchmarks.driver_on_fake import Load, Sample, Service
from benchmarks.output import Line, arguments_of, show

FEWER_IN_FLIGHT = (20, 100)
QUESTIONS = ("squeue", "sacct")


def main() -> None:
    arguments = _arguments()
    show(_lines(arguments.searches, arguments.trials, arguments.in_flight), arguments.json)


def _lines(searches: int, trials: int, in_flight: int) -> Iterator[Line]:
    yield from service_lines(Load(searches, trials, in_flight))
    for fewer in FEWER_IN_FLIGHT:
        # A process of its own, whose memory is that of this load.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            yield process.submit(_whole, Load(searches, 4, fewer)).result()


def _whole(load: Load) -> Line:
    *_, whole = service_lines(load)
    return whole


def service_lines(load: Load) -> Iterator[Line]:
    """Line for each window; then one for all."""
    with tempfile.TemporaryDirectory(prefix="parlay-scale-") as folder:
        samples = list(Service(Path(folder), load).run())
    windows = [window for window in pairwise(samples) if window[1].trials > window[0].trials]
    for before, after in windows:
        yield {"what": "window", "from": before.trials, "to": after.trials} | _per_trial(before, after)
    first, last = samples[0], samples[-1]
    minutes = (last.simulated_s - first.simulated_s) / 60
    yield {
        "what": "service",
        "searches": load.searches,
        "in_flight": load.in_flight,
        "trials": last.trials,
        **_per_trial(first, last),
        "growth": _growth(windows),
        "shares": _shares(first, last),
        "questions_per_minute": round(_count(QUESTIONS, first, last) / minutes, 2),
        "commands_per_trial": round(_count(set(last.calls) - {*QUESTIONS}, first, last) / last.trials, 2),
        "peak_rss_mib": round(_peak_rss_mib()),
    }


def _per_trial(before: Sample, after: Sample) -> Line:
    trials = after.trials - before.trials
    return {
        "cpu_ms_per_trial": round(1000 * (after.cpu_s - before.cpu_s) / trials, 2),
        "ledger_bytes_per_trial": (after.ledger_bytes - before.ledger_bytes) // trials,
        "folder_bytes_per_trial": (after.folder_bytes - before.folder_bytes) // trials,
    }


def _growth(windows: Sequence[tuple[Sample, Sample]]) -> float | None:
    """None where no two windows have trials that begin and trials that end; others cannot be compared."""
    whole = [window for window in windows if _count(["sbatch"], *window) and window[1].ended > window[0].ended]
    if len(whole) < 2:
        return None
    first, last = ((w[1].cpu_s - w[0].cpu_s) / (w[1].trials - w[0].trials) for w in (whole[0], whole[-1]))
    return round(last / first, 2)


def _shares(first: Sample, last: Sample) -> dict[str, float]:
    """Shares of a driver's CPU time by part, the largest first; `loop` is the rest."""
    spent, whole = last.parts_s - first.parts_s, last.cpu_s - first.cpu_s
    return {part: round(seconds / whole, 2) for part, seconds in spent.most_common()}


def _count(commands: Iterable[str], before: Sample, after: Sample) -> int:
    return sum(after.calls[command] - before.calls[command] for command in commands)


def _peak_rss_mib() -> float:
    """Peak memory of this process; getrusage would include the parent's before the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def _arguments() -> argparse.Namespace:
    parser = arguments_of(__doc__)
    parser.add_argument("--searches", type=int, default=50, help="of the service")
    parser.add_argument("--trials", type=int, default=60, help="of each search")
    parser.add_argument("--in-flight", type=int, default=200, help="trials at once, of all searches together")
    return parser.parse_args()


if __name__ == "__main__":
    main()
