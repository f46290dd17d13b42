"""Tables of all parity cases: `python -m tests.trials.train.parity_table [--covering] [--only megatron-core]`.

Trains all valid triples of tensor, pipeline, ZeRO stage and schedule on every model with every engine (with --covering
only the covering array), leaves out each reduction of engines that others wrote, prints a row as each is done, and
writes the tables into docs/parity.md. Exits with 1 when a case differs by more than its tolerance, or a case without a
reduction by no more than ten times that.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from tests.trials.diagnostics.test_parity_cases import covered_by_shape, exclusion_reasons, pairs_left_out
from tests.trials.train.engine_cases import CASES, MUTATION_BOUND, difference_without, mutations
from tests.trials.train.parity import Parity
from tests.trials.train.ranks import RanksFailed, WarmRanks
from trials.diagnostics.parity_cases import NATIVE_ENGINES, compiled_cases, covering_cases
from trials.diagnostics.selftest import Case, LargestDifference, tolerance_of

PAGE = Path(__file__).parents[3] / "docs" / "parity.md"
NATIVE = "native"
TABLES = (NATIVE, *CASES)
"""Of our own engines, and of each that others wrote."""


@dataclass(frozen=True)
class Row:
    """A case and its largest difference; `words` instead where its ranks failed."""

    case: Case
    difference: float | None
    tolerance: float
    words: str

    @property
    def agrees(self) -> bool:
        return self.difference is not None and self.difference <= self.tolerance

    @property
    def cells(self) -> tuple[str, ...]:
        found = self.words if self.difference is None else f"{self.difference:.1e}"
        layout = self.case.layout
        return (self.case.name, layout.engine, str(layout.num_gpus), found if self.agrees else f"**{found}**")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--covering", action="store_true", help="only the covering arrays")
    parser.add_argument("--only", choices=TABLES, help="only the table of these engines")
    options = parser.parse_args()
    wrong = 0
    for name in [options.only] if options.only else TABLES:
        with closing(WarmRanks(name)) as ranks:
            parity = Parity(ranks)
            rows = [trained(parity, case) for case in cases(name, options.covering)]
            wrong += sum(not row.agrees for row in rows)
            lines = [*table(rows), *(left_out_table() if name == NATIVE else [])]
            if name in CASES:
                differences = {m: difference_without(ranks, parity, *m) for m in mutations(name)}
                wrong += sum(found.value <= MUTATION_BOUND for found in differences.values())
                lines += mutation_table(name, differences)
        PAGE.write_text(with_table(PAGE.read_text(), name, lines))
    print(f"{wrong} rows are not as they should be; the tables are in {PAGE.name}")
    sys.exit(1 if wrong else 0)


def cases(name: str, only_covering: bool) -> list[Case]:
    """All cases of a table; those of torch.compile only where a compiler is installed."""
    engines = (name,) if name in CASES else NATIVE_ENGINES
    chosen = covering_cases(engines=engines, covers=None if only_covering else covered_by_shape)
    return chosen + (compiled_cases(engines=engines) if shutil.which("g++") else [])


def trained(parity: Parity, case: Case) -> Row:
    """The case's row, which is printed."""
    try:
        difference = parity.difference(case, parity.train(case))
        row = Row(case, difference.value, tolerance_of(case, "cpu"), str(difference))
    except RanksFailed as failed:
        row = Row(case, None, tolerance_of(case, "cpu"), str(failed).strip().splitlines()[-1])
    state = "ok    " if row.agrees else "FAILED"
    print(f"{state}  {case.layout.num_gpus} ranks  {case.name}  {row.words}", flush=True)
    return row


def with_table(page: str, name: str, lines: Sequence[str]) -> str:
    """The page with the table of this name replaced."""
    begin, end = f"<!-- table {name} -->", f"<!-- end of table {name} -->"
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, *lines, end + after])


def table(rows: Sequence[Row]) -> list[str]:
    agreeing = sum(row.agrees for row in rows)
    worst = max((row.difference or 0.0 for row in rows if row.case.layout.precision == "fp32"), default=0.0)
    return [
        "",
        f"{agreeing} of {len(rows)} cases agree; the largest difference in fp32 is {worst:.1e}. Made by `{_command()}`"
        f" on {date.today()} with Python {platform.python_version()} and torch {torch.__version__}.",
        "",
        "| combination | engine | ranks | difference |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row.cells)} |" for row in rows),
        "",
    ]


def _command() -> str:
    options = "".join(f" {word}" for word in sys.argv[1:])
    return f"python -m tests.trials.train.parity_table{options}" if options else "make parity-full"


def left_out_table() -> list[str]:
    chosen = covering_cases()
    by_rule: dict[str, list[str]] = {}
    for pair in pairs_left_out(chosen):
        rules = " and ".join(f"`{rule}`" for rule in sorted(exclusion_reasons(pair, chosen, "cpu")))
        by_rule.setdefault(rules, []).append(" with ".join(f"{axis} {value}" for axis, value in pair))
    return [
        "Pairs of axis values that no layout can have, by the rule that refuses them:",
        "",
        "| rule | pairs |",
        "|---|---|",
        *(f"| {rule} | {', '.join(pairs)} |" for rule, pairs in sorted(by_rule.items())),
        "",
    ]


def mutation_table(engine: str, differences: Mapping[tuple[str, Case], LargestDifference]) -> list[str]:
    return [
        f"Each reduction that {engine} calls in these cases, left out for three steps; more than {MUTATION_BOUND} is"
        " asked:",
        "",
        "| left out | combination | difference |",
        "|---|---|---|",
        *(f"| {place} | {case.name} | {found.value:.1e} |" for (place, case), found in differences.items()),
        "",
    ]


if __name__ == "__main__":
    main()
