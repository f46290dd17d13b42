"""Memory of a service whose searches are actors of its own Ray: itself, Ray's servers, each actor.

The searches use the default sampler on a real Slurm whose only node one of them has, so the others' jobs are pending.
Measures the real `parlay serve` with all its processes; trials do nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.driver_on_login import COMMAND, memory_mib
from benchmarks.driver_on_slurm import SEARCH
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of

ACTOR = "ray::Worker"
"""Process title of a search's driver; see orchestrator/launchers/ray/runtime.py."""

TRIAL_S = 3600.0
SETTLE_S = 15.0
"""Seconds for the last driver to reach its memory use after its first job."""

START_LIMIT_S = 180.0
"""Time limit for the service with its Ray, and for each search."""

LOOK_S = 0.5


def lines(folder: Path, environment: Mapping[str, str], searches: int) -> Iterator[dict[str, Any]]:
    """Line for each kind of process, and one for all. `folder` is empty."""
    search_file, env = _written(folder, environment)
    with _service(folder, env) as service:
        for number in range(1, searches + 1):
            submit = [*COMMAND, "submit", str(search_file)]
            subprocess.run(
                submit, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
            )
            _await(service, lambda number=number: len(_actors(service)) == number)
        _await(service, lambda: _submitted(folder) == searches)
        time.sleep(SETTLE_S)
        yield from memory_lines({"service": [service], "ray": _servers(service), "actors": _actors(service)})


def memory_lines(processes: Mapping[str, Sequence[psutil.Process]]) -> Iterator[dict[str, Any]]:
    """Line per kind of process: count, MiB in total, on average and of the largest."""
    known = {what: [memory_mib(process) for process in found] for what, found in processes.items()}
    for what, each in [*known.items(), ("together", [mib for found in known.values() for mib in found])]:
        yield {
            "what": what,
            "processes": len(each),
            "pss_mib": round(sum(each)),
            "pss_mib_each": round(sum(each) / len(each)) if each else None,
            "largest_pss_mib": round(max(each)) if each else None,
        }


def _written(folder: Path, environment: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """Search file, and environment in which its trials take TRIAL_S."""
    table, search_file = folder / "table.json", folder / "search.yaml"
    text = SEARCH.replace("sampler: random", "sampler: guided, max_trials: 4, parallel_trials: 1")
    search_file.write_text(text.replace("1s}", "30s}"))
    layouts = candidates_of(load_search_file(search_file)).layouts
    table.write_text(json.dumps({layout.key: {"takes_s": TRIAL_S} for layout in layouts}))
    own = {"PARLAY_HOME": str(folder / "home"), "PYTHONPATH": os.getcwd(), "PARLAY_TEST_TABLE": str(table)}
    return search_file, {**os.environ, **environment, **own}


@contextmanager
def _service(folder: Path, env: Mapping[str, str]) -> Iterator[psutil.Popen]:
    """Running `parlay serve` as a context."""
    with open(folder / "serve.json", "wb") as out:
        serve = [*COMMAND, "serve", "--executor", "ray", "--json"]
        service = psutil.Popen(serve, cwd=folder, env=env, stdout=out, stderr=subprocess.DEVNULL)
    try:
        _await(service, lambda: bool((folder / "serve.json").read_text().strip()))
        yield service
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait()


def _actors(service: psutil.Popen) -> list[psutil.Process]:
    return [process for process in service.children(recursive=True) if _is_actor(process)]


def _servers(service: psutil.Popen) -> list[psutil.Process]:
    """Other processes of the service: Ray's own, including idle workers."""
    return [process for process in service.children(recursive=True) if not _is_actor(process)]


def _is_actor(process: psutil.Process) -> bool:
    try:
        return " ".join(process.cmdline()).startswith(ACTOR)
    except psutil.NoSuchProcess:
        return False


def _submitted(folder: Path) -> int:
    """Searches whose first job is in the queue."""
    return sum('"attempt_launched"' in path.read_text() for path in folder.glob("runs/*/journal.jsonl"))


def _await(service: psutil.Popen, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while not holds():
        if service.poll() is not None or time.monotonic() >= deadline:
            raise RuntimeError(f"the service ended, or did not get there within {START_LIMIT_S:g} s")
        time.sleep(LOOK_S)
