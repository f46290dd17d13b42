"""The faults Parlay survives, each with the tests that prove it: the section `## Faults` of docs/lifecycle.md.

Printed by `python -m tests.fault_table`; with --write the page is brought up to date. A test belongs to fault 7 if its
name begins with `test_fault_07_` and it carries `@pytest.mark.fault(7)`; one that brings about several carries a mark
with all their numbers.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.faults import FAULTS

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "lifecycle.md"
_HEADING = "## Faults"
_INTRODUCTION = """\
What can go wrong around a search, what Parlay makes of it, and the tests that bring it about. The table is made from
the tests' names by `python -m tests.fault_table --write`.
"""


@dataclass(frozen=True)
class FaultTest:
    """A test that claims a fault by its name (`named`, None without a number) or by its marks (`marked`)."""

    file: str
    name: str
    named: int | None
    marked: tuple[int, ...]


def fault_tests() -> list[FaultTest]:
    """Every test that has to do with a fault, found in the tests' source."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            test = FaultTest(str(path.relative_to(TESTS.parent)), function.name, _named(function), _marked(function))
            if test.named is not None or test.marked:
                found.append(test)
    return found


def section(tests: list[FaultTest]) -> str:
    """The section of the page, from its heading to the end of its table."""
    of_fault = defaultdict(list)
    for test in tests:
        for number in test.marked:
            of_fault[number].append(test)
    rows = [_row(number, of_fault[number]) for number in FAULTS]
    table = ["| # | fault | what happens | shown by |", "|---|---|---|---|", *rows]
    return "\n".join([_HEADING, "", _INTRODUCTION, *table]) + "\n"


def page_with(page: str, section: str) -> str:
    """The page with this section in the place of the one it has."""
    before, _, rest = page.partition(f"\n{_HEADING}\n")
    following = rest.find("\n## ")
    after = rest[following:] if following >= 0 else ""
    return f"{before.rstrip()}\n\n{section}{after}"


def _row(number: int, tests: list[FaultTest]) -> str:
    fault = FAULTS[number]
    files = sorted({test.file for test in tests})
    shown_by = ", ".join(f"`{file.removeprefix('tests/')}`" for file in files) or "no test yet"
    return f"| {number} | {fault.what} | {fault.then} | {shown_by} |"


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def _named(function: ast.FunctionDef) -> int | None:
    words = function.name.split("_")
    return int(words[2]) if words[1] == "fault" and words[2].isdigit() else None


def _marked(function: ast.FunctionDef) -> tuple[int, ...]:
    calls = [decorator for decorator in function.decorator_list if isinstance(decorator, ast.Call)]
    marks = [call for call in calls if ast.unparse(call.func) == "pytest.mark.fault"]
    return tuple(argument.value for call in marks for argument in call.args if isinstance(argument, ast.Constant))


if __name__ == "__main__":
    made = section(fault_tests())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    else:
        sys.stdout.write(made)
