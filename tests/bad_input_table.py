"""Bad input and the rules of security, each with the tests that prove it: docs/bad_inputs.md.

Printed by `python -m tests.bad_input_table`; with --write the page is brought up to date. A test belongs to line 7 if
it carries `@pytest.mark.bad_input(7)`, and to a rule of security if it carries `@pytest.mark.security("no_shell")`;
either mark may hold several.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bad_input_lines import BAD_INPUTS, SECURITY, Line

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "bad_inputs.md"
_MARKS = ("pytest.mark.bad_input", "pytest.mark.security")
_BEGINNING = """\
# Bad input, and what it is answered with

Every refusal names the field, the value, the rule and what to do instead; with `--json` they are `key`, `value`, `rule`
and `fix` of the error object. It comes before anything is launched or written, with exit code 2 where nothing else is
said. How a search keeps secrets, files and jobs safe is told in [security.md](security.md).

Each line was seen to hold by the tests beside it. Both tables are made from the tests' marks by
`python -m tests.bad_input_table --write`.
"""


@dataclass(frozen=True)
class MarkedTest:
    """A test with the lines it is marked with (`lines`), and those that its name tells (`named`)."""

    file: str
    name: str
    lines: tuple[int | str, ...]
    named: tuple[int, ...]


def marked_tests() -> list[MarkedTest]:
    """Every test that has to do with a line, found in the tests' source."""
    found = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
            lines, named = tuple(_marked(function)), _named(function.name)
            if lines or named:
                found.append(MarkedTest(str(path.relative_to(TESTS)), function.name, lines, named))
    return found


def page(tests: Iterable[MarkedTest]) -> str:
    """The whole page."""
    of_line = defaultdict(list)
    for test in tests:
        for line in test.lines:
            of_line[line].append(test)
    inputs = _table(("#", "what comes in", "what happens"), BAD_INPUTS, of_line)
    security = _table(("mark", "what", "how"), SECURITY, of_line)
    return "\n".join([_BEGINNING, *inputs, "", "## Security", "", *security]) + "\n"


def _table(head: tuple[str, ...], lines: Mapping, of_line: Mapping[int | str, list[MarkedTest]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} | shown by |"
    yield "|---" * (len(head) + 1) + "|"
    for key, line in lines.items():
        yield f"| {key} | {line.what} | {line.rule} | {_shown_by(line, of_line[key])} |"


def _shown_by(line: Line, tests: list[MarkedTest]) -> str:
    of_file = defaultdict(list)
    for test in tests:
        of_file[test.file].append(test.name.removeprefix("test_"))
    shown = [f"`{file}`: {', '.join(names)}" for file, names in of_file.items()]
    return "<br>".join(shown + ([f"(comes with {line.later})"] if line.later else []))


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def _marked(function: ast.FunctionDef) -> Iterator[int | str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in _MARKS:
            yield from (argument.value for argument in decorator.args if isinstance(argument, ast.Constant))


def _named(name: str) -> tuple[int, ...]:
    """`test_rows_20_22_and_23_...` is about those three."""
    numbers = re.match(r"test_rows?_((\d+|and|to)_)+", name)
    if numbers is None:
        return ()
    words = numbers[0].split("_")
    found = [int(word) for word in words if word.isdigit()]
    return tuple(range(found[0], found[-1] + 1)) if "to" in words else tuple(found)


if __name__ == "__main__":
    made = page(marked_tests())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(made, encoding="utf-8")
    else:
        sys.stdout.write(made)
