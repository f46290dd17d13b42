"""Tables of the pages that name the tests of each line: faults, refused inputs, rules of security.

A line is written by hand but for its last column, the tests with its mark: `@pytest.mark.fault(7)`, `bad_input(7)`,
`security("no_shell")`. `python -m tests.fault_table --write` brings that of docs/lifecycle.md and of docs/bad_inputs.md
up to date.
"""

from __future__ import annotations

import sys
from collections import defaultdict

from tests.sources import ROOT, all_tests

PAGES = (ROOT / "docs" / "lifecycle.md", ROOT / "docs" / "bad_inputs.md")
MARKS = {"| # | fault |": "fault", "| # | input |": "bad_input", "| mark | what |": "security"}
"""Mark of a table's lines, by the beginning of its first line."""


def lines_of(text: str) -> dict[str, dict[str, str]]:
    """The lines of a page's tables by mark and first cell, without their last column."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    mark = None
    for line in text.splitlines():
        if not line.startswith("|"):
            mark = None
        elif mark is None:
            mark = next((name for head, name in MARKS.items() if line.startswith(head)), "")
        elif mark and not line.startswith("|---"):
            found[mark][line.split(" | ")[0].removeprefix("| ")] = line.removesuffix(" |").rpartition(" | ")[0]
    return found


def brought_up_to_date(text: str) -> str:
    """The page with the tests that there are."""
    of_lines = {f"{line} | ": (mark, key) for mark, lines in lines_of(text).items() for key, line in lines.items()}
    beginnings = tuple(of_lines)
    made = []
    for line in text.splitlines():
        beginning = f"{line.removesuffix(' |').rpartition(' | ')[0]} | "
        made.append(f"{beginning}{_tests_of(*of_lines[beginning])} |" if beginning in beginnings else line)
    return "\n".join(made) + "\n"


def _tests_of(mark: str, key: str) -> str:
    names = defaultdict(list)
    for test in all_tests():
        if key in map(str, test.marked(mark)):
            names[test.file].append(test.name.removeprefix("test_"))
    if mark == "fault":
        return ", ".join(f"`{file}`" for file in sorted(names))
    return "<br>".join(f"`{file}`: {', '.join(tests)}" for file, tests in names.items())


if __name__ == "__main__":
    for page in PAGES if "--write" in sys.argv[1:] else ():
        page.write_text(brought_up_to_date(page.read_text(encoding="utf-8")), encoding="utf-8")
