"""Hops: functions of ours that hold an object on its way, counted on two real searches of this machine.

The searches run with tests/stacks/sitecustomize.py, which notes the stack wherever an object is handed on. The hops of
an object are the distinct functions on these stacks; helpers that have returned are not on them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm.sandbox.apt_packages import missing_packages
from tests.kit import ABSENT, TINY_SEARCH, search_file, search_text
from tests.orchestrator.cli.parlay import parlay
from tests.slurm.sandboxes import sandbox
from tests.sources import ROOMS, ROOT

_SEARCH = search_text(
    TINY_SEARCH,
    cluster={"gpus_per_node": 1},
    search={"sampler": ABSENT, "max_trials": ABSENT, "parallel_trials": 1},
    tracking={"enabled": False},
    baseline=ABSENT,
)


@dataclass(frozen=True)
class Handover:
    """Moment at which an object is handed on: `what` happened (read, write, start, sync, new), and of what."""

    what: str
    of: str
    stack: tuple[str, ...]

    @property
    def innermost_file(self) -> str:
        return self.stack[0].partition("::")[0]


def hops() -> dict[str, int]:
    """Functions and files that a search file passes until its first rank is started, a throughput from its rank to
    recipe.yaml, and a job id from sbatch to disk; the last is left out where no Slurm is installed."""
    with tempfile.TemporaryDirectory(prefix="parlay-hops-") as place:
        counted = _counted("search_file", _of_search_file(local := _searched(Path(place), "local", {})))
        counted |= _counted("throughput", _of_throughput(local))
    if not missing_packages(accounting=False):
        with sandbox(accounting=False) as slurm, tempfile.TemporaryDirectory(prefix="parlay-hops-") as place:
            counted |= _counted("job_id", _of_job_id(_searched(Path(place), "slurm", slurm.environment)))
    return counted


def _searched(place: Path, launcher: str, environment: dict[str, str]) -> list[Handover]:
    """Handovers of a search, in the order of time."""
    noted = place / "stacks"
    noted.mkdir()
    variables = {
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent / "stacks"), str(ROOT))),
        "PARLAY_HOME": str(place / "home"),
        "STACKS_TO": str(noted),
        "STACKS_PLACE": str(place),
        "STACKS_ROOMS": os.pathsep.join(ROOMS),
    }
    search = search_file(place, _SEARCH, launcher={"kind": launcher})
    ended = parlay("run", search, cwd=place, variables=environment | variables)
    if ended.code != 0:
        raise SystemExit(ended.out + ended.err)
    lines = [json.loads(line) for path in noted.iterdir() for line in path.read_text().splitlines()]
    return [Handover(what, of, tuple(stack)) for _, what, of, stack in sorted(lines)]


def _of_search_file(handovers: list[Handover]) -> list[Handover]:
    return [
        _first(handovers, "read", "/search.yaml"),
        _first(handovers, "new", "SearchSpec"),
        _first(handovers, "write", "/journal.jsonl"),
        _first(handovers, "write", "/a1/.spec.json"),
        _first(handovers, "start", "/a1/spec.json"),
    ]


def _of_throughput(handovers: list[Handover]) -> list[Handover]:
    journal = _first(handovers, "write", "/journal.jsonl").innermost_file
    by_driver = [one for one in handovers if one.stack[-1].startswith("orchestrator/")]  # ranks look for it, too
    read = _first(by_driver, "read", "/outcome.r0.json")
    after = by_driver[by_driver.index(read) :]
    recorded = next(one for one in after if one.what == "sync" and one.innermost_file == journal)
    return [_first(handovers, "write", "/.outcome.r0.json"), read, recorded, _first(after, "write", "/recipe.yaml")]


def _of_job_id(handovers: list[Handover]) -> list[Handover]:
    journal = _first(handovers, "write", "/journal.jsonl").innermost_file
    started = _first(handovers, "start", "sbatch ")
    after = handovers[handovers.index(started) :]
    return [started, next(one for one in after if one.what == "sync" and one.innermost_file == journal)]


def _first(handovers: Iterable[Handover], what: str, of: str) -> Handover:
    return next(one for one in handovers if one.what == what and of in one.of)


def _counted(name: str, handovers: list[Handover]) -> dict[str, int]:
    functions = {function for handover in handovers for function in handover.stack}
    files = {function.partition("::")[0] for function in functions}
    return {f"hops.{name}": len(functions), f"hops.{name}.files": len(files)}


if __name__ == "__main__":
    print(json.dumps(hops(), indent=1))
