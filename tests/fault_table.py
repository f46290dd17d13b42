"""The faults Parlay survives, each with the tests that prove it: the section `## Faults` of docs/lifecycle.md.

Printed by `python -m tests.fault_table`; with --write the page is brought up to date. A test belongs to fault 7 if it
carries `@pytest.mark.fault(7)`; the mark of one that brings about several holds all their numbers.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable

from tests.faults import FAULTS
from tests.sources import ROOT, MarkedTest, all_tests

PAGE = ROOT / "docs" / "lifecycle.md"
_HEADING = "## Faults"
_INTRODUCTION = """\
Faults around a search, how Parlay handles them, and the tests that inject them. Generated from the tests' marks by
`python -m tests.fault_table --write`.
"""


def section(tests: Iterable[MarkedTest]) -> str:
    """The section of the page, from its heading to the end of its table."""
    files_of = defaultdict(set)
    for test in tests:
        for number in test.marked("fault"):
            files_of[number].add(test.file)
    rows = [_row(number, files_of[number]) for number in FAULTS]
    table = ["| # | fault | what happens | tests |", "|---|---|---|---|", *rows]
    return "\n".join([_HEADING, "", _INTRODUCTION, *table]) + "\n"


def page_with(page: str, section: str) -> str:
    """The page with this section in the place of the one it has."""
    before, _, rest = page.partition(f"\n{_HEADING}\n")
    following = rest.find("\n## ")
    after = rest[following:] if following >= 0 else ""
    return f"{before.rstrip()}\n\n{section}{after}"


def _row(number: int, files: set[str]) -> str:
    fault = FAULTS[number]
    shown_by = ", ".join(f"`{file}`" for file in sorted(files)) or "no test yet"
    return f"| {number} | {fault.what} | {fault.then} | {shown_by} |"


if __name__ == "__main__":
    made = section(all_tests())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        sys.stdout.write(made)
