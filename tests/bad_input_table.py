"""Bad input and rules of security, each with the tests that prove it: docs/bad_inputs.md.

Prints the page (`python -m tests.bad_input_table`); --write updates it. A test belongs to line 7 if it has
`@pytest.mark.bad_input(7)`, and to a rule of security if it has `@pytest.mark.security("no_shell")`; either mark may
have several.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from tests.bad_input_lines import BAD_INPUTS, SECURITY, Line
from tests.sources import ROOT, MarkedTest, all_tests

PAGE = ROOT / "docs" / "bad_inputs.md"
_BEGINNING = """\
# Refused inputs

Look up which inputs are refused, and the tests of each. An error names the field, the value, the rule and the fix
(`key`, `value`, `rule` and `fix` with `--json`). It comes before anything is launched or written, with exit code 2
unless stated otherwise. [security.md](security.md) has the rules on secrets, files and jobs.

Both tables are generated from the tests' marks by `python -m tests.bad_input_table --write`.
"""


def lines_of(test: MarkedTest) -> tuple[int | str, ...]:
    """The lines that a test is marked with."""
    return test.marked("bad_input", "security")


def page(tests: Iterable[MarkedTest]) -> str:
    """The whole page."""
    of_line = defaultdict(list)
    for test in tests:
        for line in lines_of(test):
            of_line[line].append(test)
    inputs = _table(("#", "input", "result"), BAD_INPUTS, of_line)
    security = _table(("mark", "what", "how"), SECURITY, of_line)
    return "\n".join([_BEGINNING, *inputs, "", "## Security", "", *security]) + "\n"


def _table(head: tuple[str, ...], lines: Mapping, of_line: Mapping[int | str, list[MarkedTest]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} | tests |"
    yield "|---" * (len(head) + 1) + "|"
    for key, line in lines.items():
        yield f"| {key} | {line.what} | {line.rule} | {_shown_by(line, of_line[key])} |"


def _shown_by(line: Line, tests: list[MarkedTest]) -> str:
    of_file = defaultdict(list)
    for test in tests:
        of_file[test.file].append(test.name.removeprefix("test_"))
    shown = [f"`{file}`: {', '.join(names)}" for file, names in of_file.items()]
    return "<br>".join(shown + ([f"(comes with {line.later})"] if line.later else []))


if __name__ == "__main__":
    made = page(all_tests())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)
