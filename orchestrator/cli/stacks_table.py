"""Table of an experiment of two software stacks, as `run`, `status` and `compare` print it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dashboards.terminal.headline import UNITS
from dashboards.terminal.live_table import console_for
from dashboards.text import printable
from dashboards.trial_text import format_number
from orchestrator.cli.output import print_text
from orchestrator.config.spec import SearchSpec
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import speed_of

if TYPE_CHECKING:
    from orchestrator.comparison.stacks import StackComparison

_MAX_CELL = 60


def print_stacks(found: StackComparison, spec: SearchSpec) -> None:
    """Print each layout with both stacks, and what differs between them."""
    from rich.table import Table

    unit, console = UNITS[spec.objective], console_for(sys.stdout)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in (f"A {unit}", f"B {unit}", "B over A (95 %)", "pairs", "B is", "layout"):
        table.add_column(heading, overflow="fold")
    for one in found.layouts:
        ratio = one.ratio
        words = "" if ratio is None else f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        pairs = "" if ratio is None else str(ratio.pairs)
        sides = (_cell(side, spec) for side in (one.own, one.other))
        table.add_row(*sides, words, pairs, str(one.verdict).replace("_", " "), one.layout_key)
    print_text(f"\nA  the search's own software\nB  {printable(found.against)}")
    console.print(table)
    differing = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in ("software", "A", "B"):
        differing.add_column(heading, overflow="fold")
    for row in found.software:
        differing.add_row(str(row["field"]), *(_text(row[side]) for side in ("a", "b")))
    if found.software:
        console.print(differing)


def _cell(side: RankedLayout | None, spec: SearchSpec) -> str:
    return "-" if side is None else f"{side.trial} {format_number(speed_of(side, spec.objective).value)}"


def _text(value: object) -> str:
    text = "-" if value is None else printable(str(value))
    return text if len(text) <= _MAX_CELL else text[: _MAX_CELL - 1] + "…"
