"""Mutation tests: small faults put into the code one at a time, each of which the tests of its room should notice.

`python -m tests.mutants` (`make mutants`) prints a line for each mutant and a table by room. The draw depends on a
seed, by default the hash of the last commit, and on what a mutant changes, not on its file: a function that moves keeps
its mutants. A mutant meets the tests of its room that run its function, without those that start processes and without
walks; with `--slow`, a mutant that survives these meets the room's tests that start processes.

`--only NAME` runs mutants whose name contains it, or those of the room of this name, `--list` says what they change;
`--page FILE` brings their page up to date. `--tree FOLDER` runs the draw on another checkout and its tests.
`--write FILE` keeps the results as JSON, and `--against FILE` leaves with 1 if a room kills more than two mutants fewer
than there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType

import pytest

from tests.mutations import ROOMS, ROOT, Mutant, Room, drawn_mutants, globbed

LIMIT_S = 600.0
"""Time limit of one mutant's quick tests; a mutant that makes them run longer was noticed."""

SLOW_LIMIT_S = 1800.0
"""Time limit of a room's tests that start processes."""

TOLERATED = 2
"""Mutants by which a room may kill fewer than before."""

QUICK = "not processes and not walks"
SLOW = "processes and not walks and not alone"


@dataclass(frozen=True)
class Seen:
    """Result of a mutant: the test that `noticed` it, "the time limit", or None where it survived."""

    mutant: Mutant
    noticed: str | None


def run(mutants: list[Mutant], tree: Path, workers: int, slow: bool) -> Iterator[Seen]:
    """Results of a checkout's mutants, in order; every worker has its own copy of it."""
    with tempfile.TemporaryDirectory(prefix="parlay-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            trees.put(_copied_tree(tree, Path(folder) / str(number)))
        with ThreadPoolExecutor(workers) as pool:
            rooms = [room for room in ROOMS if room.name in {mutant.room for mutant in mutants}]
            tests = dict(pool.map(lambda room: (room.name, _RoomTests.of(room, slow, trees)), rooms))
            yield from pool.map(lambda mutant: tests[mutant.room].seen(mutant, trees), mutants)


def _copied_tree(of: Path, to: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=of,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (of / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(of / name, to / name)
    shutil.copy(Path(__file__).with_name("function_calls.py"), to / "tests")
    return to


@dataclass(frozen=True)
class _RoomTests:
    """Quick tests by the function that they run (`file::function`), and files of tests that start processes."""

    quick: Mapping[str, list[str]]
    slow: list[str]

    @classmethod
    def of(cls, room: Room, slow: bool, trees: SimpleQueue[Path]) -> _RoomTests:
        tree = trees.get()
        try:
            found = tree / ".tests_by_function.json"
            files = [str(path.relative_to(tree)) for path in globbed(tree, room.tests)]
            options = ["-m", QUICK, "-p", "tests.function_calls", "-o", "timeout=0", *files]
            ended = _pytest(tree, options, None, {"FUNCTION_CALLS_TO": str(found)})
            if ended.returncode != 0:
                raise SystemExit(f"{room.name}: its tests fail without a mutant\n{ended.stdout[-4000:]}")
            return cls(json.loads(found.read_text()), files if slow else [])
        finally:
            trees.put(tree)

    def seen(self, mutant: Mutant, trees: SimpleQueue[Path]) -> Seen:
        quick = self.quick.get(f"{mutant.file}::{mutant.function}", [])
        tree = trees.get()
        path = tree / mutant.file
        source = path.read_bytes()
        try:
            path.write_bytes(mutant.applied(source))
            noticed = _noticed(tree, QUICK, _likely_first(quick, Path(mutant.file).stem), LIMIT_S)
            return Seen(mutant, noticed or _noticed(tree, SLOW, self.slow, SLOW_LIMIT_S))
        finally:
            path.write_bytes(source)
            trees.put(tree)


def _likely_first(tests: list[str], stem: str) -> list[str]:
    return sorted(tests, key=lambda test: f"test_{stem}.py" not in test)


def _noticed(tree: Path, marked: str, tests: list[str], limit_s: float) -> str | None:
    """First of the tests that fails, or the time limit."""
    if not tests:
        return None
    listed = tree / ".tests_to_run.txt"
    listed.write_text("\n".join(tests))
    try:
        ended = _pytest(tree, ["-m", marked, "--exitfirst", f"@{listed}"], limit_s)
    except subprocess.TimeoutExpired:
        return "the time limit"
    if ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split(" ")[1] if lines else f"pytest left with {ended.returncode}"


def _pytest(
    tree: Path, arguments: list[str], limit_s: float | None, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PARLAY_GATE": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def _killed_by_room(seen: Iterable[Seen]) -> dict[str, tuple[int, int]]:
    """Numbers of killed and of all mutants."""
    of_room = defaultdict(list)
    for one in seen:
        of_room[one.mutant.room].append(one.noticed is not None)
    return {room: (sum(killed), len(killed)) for room, killed in of_room.items()}


def table(seen: Iterable[Seen]) -> str:
    """Mutants by room: made, killed, survived."""
    rooms = _killed_by_room(seen)
    rows = {**rooms, "all": tuple(map(sum, zip(*rooms.values(), strict=True)))}
    lines = [f"| {room} | {made} | {killed} | {made - killed} |" for room, (killed, made) in rows.items()]
    return "\n".join(["| package | mutants | killed | survived |", "|---|---|---|---|", *lines])


def page(known: str, seen: Iterable[Seen], seed: str) -> str:
    """The known page with these results below its first words."""
    made = f"Made by `make mutants` on {datetime.now(UTC):%Y-%m-%d}, seed `{seed}`."
    return f"{known.partition('| package |')[0]}{table(seen)}\n\n{made}\n"


def rooms_that_lost(seen: Iterable[Seen], earlier: Iterable[Seen]) -> list[str]:
    """Rooms whose killed share is more than `TOLERATED` mutants below the earlier one, with both numbers."""
    now, before = _killed_by_room(seen), _killed_by_room(earlier)
    return [
        f"{room}: {killed} of {made}, before {before[room][0]} of {before[room][1]}"
        for room, (killed, made) in now.items()
        if room in before and killed + TOLERATED < before[room][0] / before[room][1] * made
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed")
    parser.add_argument("--tree", type=Path, default=ROOT)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    seed, tree = chosen.seed or _last_commit(), chosen.tree.resolve()
    mutants = [m for m in drawn_mutants(seed, tree) if chosen.only in m.name or chosen.only == m.room]
    if chosen.list:
        print("\n".join(f"{m.name}\n    {m.line}: {m.before!r} -> {m.after!r}" for m in mutants))
        return 0
    seen = []
    for one in run(mutants, tree, chosen.workers, chosen.slow):
        seen.append(one)
        print(f"{'killed  ' if one.noticed else 'SURVIVED'} {one.mutant.name}: {one.noticed or one.mutant.after}")
        sys.stdout.flush()
    print(f"\n{table(seen)}\n\nseed {seed}")
    if chosen.write:
        chosen.write.write_text(json.dumps([asdict(one) for one in seen], indent=1) + "\n")
    if chosen.page:
        chosen.page.write_text(page(chosen.page.read_text(encoding="utf-8"), seen, seed), encoding="utf-8")
    lost = rooms_that_lost(seen, _read(chosen.against)) if chosen.against else []
    if lost:
        print("\nkilled fewer than before:", *lost, sep="\n")
    return 1 if lost else 0


def _last_commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return asked.stdout.strip()


def _read(file: Path) -> list[Seen]:
    return [Seen(Mutant(**one["mutant"]), one["noticed"]) for one in json.loads(file.read_text())]


if __name__ == "__main__":
    sys.exit(main())
