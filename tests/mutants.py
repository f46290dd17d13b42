"""Mutation tests: 200 small faults put into the code one at a time, each of which the tests of its room should notice.

Printed by `python -m tests.mutants` (`make mutants`): a line for each mutant and a table by room. Which mutants are
made depends on a fixed seed and on what they change, never on where it stands: a function that moves to another file
keeps its mutants. A mutant meets the tests of its room that run its function, but for processes and walks.

`--only NAME` runs those whose name contains it, `--list` says what they change; `--page FILE` writes a page about them;
`--write FILE` keeps what was seen as JSON, and `--against FILE` leaves with 1 if a mutant that was killed there is not
killed any more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType

from tests.mutations import ROOMS, ROOT, Mutant, Room, drawn_mutants, globbed

LIMIT_S = 600.0
"""Time limit of one mutant's tests; a mutant that makes them run longer was noticed."""

_BEGINNING = """\
# Mutants

See how many small faults the tests find. Faults are injected one at a time: `<` for `<=`, `and` for `or`, a negated
condition, a number one higher, a call removed. Then the tests of the package run, without those that start processes
and without exhaustive ones. A mutant is killed if a test fails, and survives otherwise. A fixed seed selects the faults
(`tests/mutants.py`)."""
_SURVIVORS = """\
Some have no visible effect: a bound that is never reached exactly, or a shortcut that only saves time. Others are found
by tests of another package, or by those that start processes. A mutant runs the tests that call its function; of tests
that share a fixture which calls it, only the first."""


@dataclass(frozen=True)
class Seen:
    """Result of a mutant: the test that `noticed` it, "the time limit", or None where it survived."""

    mutant: Mutant
    noticed: str | None


def run(mutants: list[Mutant], workers: int) -> Iterator[Seen]:
    """Results of the mutants, in order; every worker has its own copy of the tree."""
    with tempfile.TemporaryDirectory(prefix="parlay-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(workers):
            trees.put(_copied_tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(workers) as pool:
            tests = dict(pool.map(lambda room: (room.name, _tests_by_function(room, trees)), _rooms_of(mutants)))
            yield from pool.map(lambda mutant: _seen(mutant, tests[mutant.room], trees), mutants)


def _rooms_of(mutants: Iterable[Mutant]) -> list[Room]:
    names = {mutant.room for mutant in mutants}
    return [room for room in ROOMS if room.name in names]


def _copied_tree(to: Path) -> Path:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def _tests_by_function(room: Room, trees: SimpleQueue[Path]) -> dict[str, list[str]]:
    """The tests of a room that run each of its functions, by `file::function`."""
    tree = trees.get()
    try:
        found = tree / ".tests_by_function.json"
        files = [str(path.relative_to(tree)) for path in globbed(tree, room.tests)]
        ended = _pytest(tree, ["-p", "tests.function_calls", *files], None, {"FUNCTION_CALLS_TO": str(found)})
        if ended.returncode != 0:
            raise SystemExit(f"{room.name}: its tests fail without a mutant\n{ended.stdout[-4000:]}")
        return json.loads(found.read_text())
    finally:
        trees.put(tree)


def _seen(mutant: Mutant, tests: Mapping[str, list[str]], trees: SimpleQueue[Path]) -> Seen:
    of_function = tests.get(f"{mutant.file}::{mutant.function}", [])
    if not of_function:
        return Seen(mutant, None)
    tree = trees.get()
    path = tree / mutant.file
    source = path.read_bytes()
    try:
        path.write_bytes(mutant.applied(source))
        return Seen(mutant, _noticed(tree, _likely_first(of_function, Path(mutant.file).stem)))
    finally:
        path.write_bytes(source)
        trees.put(tree)


def _likely_first(tests: list[str], stem: str) -> list[str]:
    return sorted(tests, key=lambda test: f"test_{stem}.py" not in test)


def _noticed(tree: Path, tests: list[str]) -> str | None:
    listed = tree / ".tests_to_run.txt"
    listed.write_text("\n".join(tests))
    try:
        ended = _pytest(tree, ["--exitfirst", f"@{listed}"], LIMIT_S)
    except subprocess.TimeoutExpired:
        return "the time limit"
    if ended.returncode == 0:
        return None
    lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split(" ")[1] if lines else f"pytest left with {ended.returncode}"


def _pytest(
    tree: Path, arguments: list[str], limit_s: float | None, variables: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not processes and not walks"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PARLAY_GATE": "1", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def table(seen: Iterable[Seen]) -> str:
    """Mutants by room: made, killed, survived."""
    made: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    for one in seen:
        made[one.mutant.room] += 1
        killed[one.mutant.room] += one.noticed is not None
    rows = [(room, made[room], killed[room]) for room in made] + [("all", made.total(), killed.total())]
    lines = [f"| {room} | {of} | {dead} | {of - dead} |" for room, of, dead in rows]
    return "\n".join(["| package | mutants | killed | survived |", "|---|---|---|---|", *lines])


def page(seen: list[Seen]) -> str:
    """Page of the results."""
    survivors = [one.mutant for one in seen if one.noticed is None]
    rows = [f"| `{m.name.replace('|', '/')}` | `{_cell(m.before)}` | `{_cell(m.after)}` |" for m in survivors]
    listed = ["| file, function, operator, place | before | after |", "|---|---|---|", *rows]
    made = f"Made by `make mutants` on {datetime.now(UTC):%Y-%m-%d}."
    return "\n\n".join([_BEGINNING, table(seen), made, "## Survivors", _SURVIVORS, "\n".join(listed)]) + "\n"


def _cell(code: str) -> str:
    words = " ".join(code.split()).replace("|", "\\|")
    return words if len(words) <= 80 else words[:77] + "..."


def killed_before(seen: Iterable[Seen], file: Path) -> list[str]:
    """The names of mutants that an earlier run killed and this one did not; a file that moved is looked through."""
    now = defaultdict(list)
    for one in seen:
        now[_wherever(one.mutant)].append(one)
    return [
        one.mutant.name
        for earlier in json.loads(file.read_text())
        if earlier["noticed"] is not None
        for one in now[_wherever(Mutant(**earlier["mutant"]))]
        if one.noticed is None
    ]


def _wherever(mutant: Mutant) -> tuple[str, str, int, str]:
    return mutant.function, mutant.operator, mutant.place, mutant.before


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    chosen = parser.parse_args()
    mutants = [mutant for mutant in drawn_mutants() if chosen.only in mutant.name]
    if chosen.list:
        print("\n".join(f"{m.name}\n    {m.line}: {m.before!r} -> {m.after!r}" for m in mutants))
        return 0
    seen = []
    for one in run(mutants, chosen.workers):
        seen.append(one)
        print(f"{'killed  ' if one.noticed else 'SURVIVED'} {one.mutant.name}: {one.noticed or one.mutant.after}")
        sys.stdout.flush()
    print(f"\n{table(seen)}")
    if chosen.write:
        chosen.write.write_text(json.dumps([asdict(one) for one in seen], indent=1) + "\n")
    if chosen.page:
        chosen.page.write_text(page(seen), encoding="utf-8")
    lost = killed_before(seen, chosen.against) if chosen.against else []
    if lost:
        print("\nkilled before, and not now:", *lost, sep="\n")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
