"""Sources of Parlay and its tests, each file parsed once per session."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("search_spaces", "slurm", "trials", "dashboards", "orchestrator")
TESTS = ROOT / "tests"

Module = str | Path
"""A file, named from ROOT or by its whole path."""


@cache
def modules() -> tuple[str, ...]:
    """Every file of the rooms, named from ROOT."""
    return tuple(str(path.relative_to(ROOT)) for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))


@cache
def parsed(module: Module) -> tuple[ast.AST, ...]:
    """Every node of a file, the file itself first."""
    return tuple(ast.walk(ast.parse((ROOT / module).read_text(encoding="utf-8"))))


@cache
def imported(module: Module) -> frozenset[str]:
    """Dotted names of everything a module imports, wherever in the file."""
    names: set[str] = set()
    for node in parsed(module):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@cache
def calls(module: Module) -> tuple[tuple[str, ast.Call], ...]:
    """Each call in a file, with what `called` makes of it."""
    return tuple(calls_among(parsed(module)))


def calls_among(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.Call]]:
    return ((called(node.func), node) for node in nodes if isinstance(node, ast.Call))


def called(function: ast.expr) -> str:
    """The dotted name of what is called: `os.open`; `.read_text` where it is a method of what is no name."""
    if isinstance(function, ast.Name):
        return function.id
    return f"{called(function.value)}.{function.attr}" if isinstance(function, ast.Attribute) else ""


@dataclass(frozen=True)
class MarkedTest:
    """A test function, its file named from tests/, and its marks that have arguments: (name, arguments)."""

    file: str
    name: str
    marks: tuple[tuple[str, tuple[Any, ...]], ...]

    def marked(self, *names: str) -> tuple[Any, ...]:
        """The arguments of the marks of these names."""
        return tuple(argument for name, arguments in self.marks if name in names for argument in arguments)


@cache
def all_tests() -> tuple[MarkedTest, ...]:
    """Every test there is."""
    return tuple(
        MarkedTest(str(path.relative_to(TESTS)), function.name, tuple(_marks(function)))
        for path in sorted(TESTS.rglob("test_*.py"))
        for function in _tests_in(ast.parse(path.read_text(encoding="utf-8")))
    )


def _tests_in(scope: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for node in scope.body:
        if isinstance(node, ast.ClassDef):
            yield from _tests_in(node)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def _marks(function: ast.FunctionDef) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Those of the function, and those of its parameters."""
    for decorator in function.decorator_list:
        for name, call in calls_among(ast.walk(decorator)):
            if name.startswith("pytest.mark."):
                arguments = (argument.value for argument in call.args if isinstance(argument, ast.Constant))
                yield name.removeprefix("pytest.mark."), tuple(arguments)
