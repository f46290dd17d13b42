"""Table of all parity cases: `python -m tests.trials.train.parity_table [--covering]`.

Trains all valid triples of tensor, pipeline, ZeRO stage and schedule on every model with every engine (with --covering
only the cases of `make test`), prints a row as each is done, and writes the table into docs/parity.md. Exits with 1
when a case differs by more than its tolerance.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch

from tests.trials.train.parity import Parity
from tests.trials.train.ranks import RanksFailed, WarmRanks
from trials.diagnostics.parity_cases import (
    compiled_cases,
    covering_cases,
    exclusion_reasons,
    full_cases,
    pairs_left_out,
)
from trials.diagnostics.selftest import Case, tolerance_of

PAGE = Path(__file__).parents[3] / "docs" / "parity.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


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
    parser.add_argument("--covering", action="store_true", help="only the covering array, which `make check` trains")
    only_covering = parser.parse_args().covering
    rows = []
    with closing(WarmRanks()) as ranks:
        for row in trained(Parity(ranks), cases(only_covering)):
            rows.append(row)
            state = "ok    " if row.agrees else "FAILED"
            print(f"{state}  {row.case.layout.num_gpus} ranks  {row.case.name}  {row.words}", flush=True)
    command = "python -m tests.trials.train.parity_table --covering" if only_covering else "make parity-full"
    PAGE.write_text(with_table(PAGE.read_text(), table(rows, command)))
    failed = sum(not row.agrees for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} cases agree; the table is in {PAGE.name}")
    sys.exit(1 if failed else 0)


def cases(only_covering: bool) -> list[Case]:
    """All cases; those of torch.compile only where a compiler is installed."""
    return (covering_cases() if only_covering else full_cases()) + (compiled_cases() if shutil.which("g++") else [])


def trained(parity: Parity, given: Sequence[Case]) -> Iterator[Row]:
    for case in given:
        tolerance = tolerance_of(case, "cpu")
        try:
            difference = parity.difference(case, parity.train(case))
        except RanksFailed as failed:
            yield Row(case, None, tolerance, str(failed).strip().splitlines()[-1])
        else:
            yield Row(case, difference.value, tolerance, str(difference))


def with_table(page: str, lines: Sequence[str]) -> str:
    """The page with its table replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([before + BEGIN, *lines, END + after])


def table(rows: Sequence[Row], command: str) -> list[str]:
    agreeing = sum(row.agrees for row in rows)
    worst = max((row.difference or 0.0 for row in rows if row.case.layout.precision == "fp32"), default=0.0)
    return [
        "",
        f"{agreeing} of {len(rows)} cases agree; the largest difference in fp32 is {worst:.1e}. Made by `{command}` on"
        f" {date.today()} with Python {platform.python_version()} and torch {torch.__version__}.",
        "",
        "| combination | engine | ranks | difference |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row.cells)} |" for row in rows),
        "",
        "Pairs of axis values that no layout can have, by the rule that refuses them:",
        "",
        "| rule | pairs |",
        "|---|---|",
        *(f"| {rule} | {', '.join(pairs)} |" for rule, pairs in left_out().items()),
        "",
    ]


def left_out() -> dict[str, list[str]]:
    """Described pairs of axis values by the rule that excludes them."""
    chosen = covering_cases()
    by_rule: dict[str, list[str]] = {}
    for pair in pairs_left_out(chosen):
        rules = " and ".join(f"`{rule}`" for rule in sorted(exclusion_reasons(pair, chosen, "cpu")))
        by_rule.setdefault(rules, []).append(" with ".join(f"{axis} {value}" for axis, value in pair))
    return dict(sorted(by_rule.items()))


if __name__ == "__main__":
    main()
