"""CPU time, memory and processes of a driver, resident or run by cron.

A search with the default sampler on a real Slurm whose trials hold their nodes and do nothing. Measures the driver with
all its processes; a phase begins where the search's folder shows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.driver_on_slurm import SEARCH
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of

TRIAL_S = 20.0
TRIALS = 8
IN_FLIGHT = 4
TURNS = 5
LOOK_S = 0.25

COMMAND = (sys.executable, "-P", "-m", "tests.orchestrator.tabled_parlay")


def lines(folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Line per phase of the resident driver, and two for cron turns. `folder` is empty."""
    table, search_file = folder / "table.json", folder / "search.yaml"
    search_file.write_text(SEARCH.replace("sampler: random", "sampler: guided").replace("1s}", "30s}"))
    layouts = candidates_of(load_search_file(search_file)).layouts
    table.write_text(json.dumps({layout.key: {"takes_s": TRIAL_S} for layout in layouts}))
    own = {"PARLAY_HOME": str(folder / "home"), "PYTHONPATH": os.getcwd(), "PARLAY_TEST_TABLE": str(table)}
    env = {**os.environ, **environment, **own}
    settings = {"search.max_trials": TRIALS, "search.parallel_trials": IN_FLIGHT, "tracking.enabled": "true"}
    words = [str(search_file), *(word for name, value in settings.items() for word in ("--set", f"{name}={value}"))]
    yield from _resident_driver(folder / "stays", ["run", *words], env)
    yield from _cron_driver(folder / "turns", ["submit", *words, "--cron"], env)


def _resident_driver(place: Path, words: Sequence[str], env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Phases: until the first job is in the queue, until the search has ended, until the command has."""
    place.mkdir()
    driver = psutil.Popen([*COMMAND, *words], cwd=place, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    phases: dict[str, _Phase] = {}
    with driver:
        while driver.poll() is None:
            with suppress(psutil.NoSuchProcess):
                phases.setdefault(_phase(place), _Phase()).look(driver)
            time.sleep(LOOK_S)
    if driver.returncode != 0:
        raise RuntimeError(f"the driver left with {driver.returncode}")
    before = 0.0
    for name, phase in phases.items():
        yield phase.line(name, before)
        before = phase.cpu_s


@dataclass
class _Phase:
    """Usage of a driver and its processes: CPU seconds since its start, and the maximum of everything else."""

    began: float = field(default_factory=time.monotonic)
    last: float = 0.0
    cpu_s: float = 0.0
    memory_mib: float = 0.0
    processes: int = 0
    threads: int = 0

    def look(self, driver: psutil.Process) -> None:
        used, all_of_it = driver.cpu_times(), [driver, *driver.children(recursive=True)]
        self.last = time.monotonic()
        self.cpu_s = used.user + used.system + used.children_user + used.children_system
        self.memory_mib = max(self.memory_mib, sum(map(memory_mib, all_of_it)))
        self.processes = max(self.processes, len(all_of_it))
        self.threads = max(self.threads, driver.num_threads())

    def line(self, name: str, before_s: float) -> dict[str, Any]:
        seconds, cpu_s = max(self.last - self.began, LOOK_S), self.cpu_s - before_s
        return {
            "phase": name,
            "seconds": round(seconds, 1),
            "cpu_s": round(cpu_s, 2),
            "core_share": round(cpu_s / seconds, 3),
            "peak_memory_mib": round(self.memory_mib),
            "processes": self.processes,
            "threads": self.threads,
        }


def _cron_driver(place: Path, words: Sequence[str], env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Most expensive turn, which chose layouts and submitted jobs, and cheapest, which found nothing new."""
    place.mkdir()
    done = subprocess.run([*COMMAND, *words, "--json"], cwd=place, env=env, stdout=subprocess.PIPE, check=True)
    folder = json.loads(done.stdout)["folder"]
    used = []
    for _ in range(TURNS):
        began = time.monotonic()
        turn = subprocess.Popen([*COMMAND, "advance", folder], cwd=place, env=env, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(turn.pid, 0)
        turn.returncode = os.waitstatus_to_exitcode(status)
        if turn.returncode != 0:
            raise RuntimeError(f"a turn exited with {turn.returncode}")
        used.append((usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss / 1024))
    subprocess.run([*COMMAND, "cancel", folder], cwd=place, env=env, stdout=subprocess.DEVNULL, check=True)
    for name, (cpu_s, seconds, peak_mib) in (("turn", max(used)), ("idle_turn", min(used))):
        yield {
            "phase": name,
            "seconds": round(seconds, 1),
            "cpu_s": round(cpu_s, 2),
            "core_share": None,
            "peak_memory_mib": round(peak_mib),
            "processes": None,
            "threads": None,
        }


def _phase(place: Path) -> str:
    """Phase of the search, by its journal."""
    text = "".join(path.read_text() for path in place.glob("runs/*/journal.jsonl"))
    if '"attempt_launched"' not in text:
        return "start"
    return "end" if '"completed"' in text else "search"


def memory_mib(process: psutil.Process) -> float:
    """Proportional set size in MiB, since a child just forked shares its parent's pages."""
    try:
        return process.memory_full_info().pss / 2**20
    except psutil.NoSuchProcess:
        return 0.0
