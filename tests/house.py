"""Size of the house: lines, tokens, modules, imports, words and hops, as `python -m tests.house` prints them.

Lines are those of `wc -l`; tokens are Python's own without comments, docstrings and line ends. budgets.toml has a
maximum for each number, which tests/test_budgets.py keeps, and for the planner's speed, which `make nightly` measures.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.hops import hops
from tests.sources import ROOMS, ROOT, imported, modules

BUDGETS = ROOT / "budgets.toml"
PLANNER = "planner.percent."
"""Percent of the time that a part of a plan took at 33a1b12; tests/benchmarks/test_planner_speed.py."""
BEFORE = {"product.code_lines": 94_745, "product.tokens": 609_707}
"""The product at 747c0700, before it was to become smaller. A text is one token whatever its lines, so that lines of
lists of names, of which 1,000 have gone, would hide denser code."""
_LAYOUT_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_NOT_COUNTED = ("docs/contract.md", "docs/search_file.md")
"""Pages that a command writes whole."""


def house() -> dict[str, int]:
    """Every number by its name but hops, which only running searches tell."""
    return {**_sizes(), **_structure(), **_data(), **_words()}


def fallen_percent(numbers: Mapping[str, int], name: str) -> float:
    """Percent by which a number of BEFORE has fallen; below 0 if it has risen."""
    return 100 * (1 - numbers[name] / BEFORE[name])


def budgeted(numbers: Mapping[str, int]) -> dict[str, int]:
    """The numbers that have a budget: all but files, and lines that another number has."""
    return {
        name: n
        for name, n in numbers.items()
        if not name.endswith((".files", "support.lines", "code_lines", "words.pages"))
    }


def lowered(text: str, numbers: Mapping[str, int]) -> str:
    """budgets.toml with each number that stands lower now; a new one is added, a raise is left to a person."""
    budgets = tomllib.loads(text)
    lines = [line for line in text.splitlines() if not (name := _name_in(line)) or _is_kept(name, numbers)]
    for place, line in enumerate(lines):
        if (name := _name_in(line)) in numbers:
            lines[place] = re.sub(r"= \d+", f"= {min(numbers[name], budgets[name])}", line)
    return "\n".join([*lines, *(f'"{name}" = {n}' for name, n in numbers.items() if name not in budgets)]) + "\n"


def _is_kept(name: str, numbers: Mapping[str, int]) -> bool:
    return name in numbers or name.startswith(PLANNER)


def _name_in(line: str) -> str:
    return line.split('"')[1] if line.startswith('"') else ""


def _sizes() -> dict[str, int]:
    """Files and lines of rooms, benchmarks and tests; tokens of the first two."""
    files = [path for path in _tracked() if path.suffix == ".py"]
    of: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        of[path.parts[0]].append(path)
    of["product"] = [path for room in ROOMS for path in of[room]]
    of["tests.support"] = [path for path in of["tests"] if not path.name.startswith("test_")]
    rows = (*ROOMS, "product", "benchmarks", "tests", "tests.support")
    sizes = {f"{row}.files": len(of[row]) for row in rows}
    sizes |= {f"{row}.lines": sum(_lines(path) for path in of[row]) for row in rows}
    sizes |= {f"{row}.tokens": sum(_tokens(path) for path in of[row]) for row in rows[:-2]}
    sizes["product.code_lines"] = sizes["product.lines"] - sum(map(_text_lines, of["product"]))
    sizes["tests.support_percent"] = round(100 * sizes["tests.support.lines"] / sizes["tests.lines"])
    return sizes


@cache
def _tracked() -> tuple[Path, ...]:
    """Files that git knows or would add, named from ROOT."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(Path(name) for name in sorted(set(listed.split("\0"))) if name and (ROOT / name).is_file())


def _lines(path: Path) -> int:
    return (ROOT / path).read_bytes().count(b"\n")


def _tokens(path: Path) -> int:
    return sum(token.type not in _LAYOUT_TOKENS for token in _without_docstrings(path))


def _text_lines(path: Path) -> int:
    """Lines that texts take beyond their first."""
    return sum(token.end[0] - token.start[0] for token in _without_docstrings(path) if token.type == tokenize.STRING)


def _without_docstrings(path: Path) -> Iterator[tokenize.TokenInfo]:
    source = (ROOT / path).read_text(encoding="utf-8")
    docstrings = set(_docstring_places(ast.parse(source)))
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return (token for token in found if token.start not in docstrings)


def _docstring_places(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Line and column of every text that stands alone: docstrings, also of constants and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.col_offset


def _structure() -> dict[str, int]:
    """Packages of the orchestrator, their floors and imports, and its modules that one module imports."""
    arrows = {(_package(module), _package(name)) for module in _orchestrator() for name in _ours(module)}
    arrows = {(importer, of) for importer, of in arrows if importer != of}
    packages = {package for arrow in arrows for package in arrow}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules():
        for name in _ours(module):
            importers[name].add(module)
    return {
        "orchestrator.packages": len(packages),
        "orchestrator.floors": _floors(packages, arrows),
        "orchestrator.arrows": len(arrows),
        "orchestrator.modules_with_one_importer": sum(len(importers[_dotted(m)]) == 1 for m in _orchestrator()),
    }


def _orchestrator() -> list[str]:
    return [m for m in modules() if m.startswith("orchestrator/") and not m.endswith("__init__.py")]


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".")


@cache
def _ours(module: str) -> frozenset[str]:
    """Modules of the orchestrator that a module imports."""
    return frozenset(imported(module) & {_dotted(other) for other in _orchestrator()} - {_dotted(module)})


def _package(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".").split(".")[1]


def _floors(packages: Iterable[str], arrows: set[tuple[str, str]]) -> int:
    """Length of the longest chain of imports between packages; those that import each other share a floor."""
    below: dict[str, set[str]] = {
        package: {of for importer, of in arrows if importer == package} for package in packages
    }
    for through in below:
        for package in below:
            if through in below[package]:
                below[package] |= below[through]

    @cache
    def floor(package: str) -> int:
        return 1 + max((floor(of) for of in below[package] if package not in below[of]), default=0)

    return max(map(floor, below))


def _data() -> dict[str, int]:
    """Lines of files that are not Python and not pages, by their suffix, without the budgets."""
    kinds: Mapping[str, tuple[str, ...]] = {
        "yaml": (".yaml", ".yml"),
        "csv": (".csv",),
        "toml": (".toml", ".cfg"),
        "assets": (".css", ".js", ".jinja", ".html"),
    }
    return {
        f"data.{kind}.lines": sum(
            _lines(path) for path in _tracked() if path.suffix in suffixes and path.name != BUDGETS.name
        )
        for kind, suffixes in kinds.items()
    }


def _words() -> dict[str, int]:
    """Words of each page, and of all."""
    pages = [path for path in _tracked() if path.suffix == ".md" and str(path) not in _NOT_COUNTED]
    words = {f"words.{path}": len((ROOT / path).read_text(encoding="utf-8").split()) for path in pages}
    return {"words.all": sum(words.values()), "words.pages": len(pages), **words}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--no-hops", action="store_true", help="run no search")
    either.add_argument("--lower", action="store_true", help="lower the budgets to these numbers")
    chosen = parser.parse_args()
    numbers = house() | ({} if chosen.no_hops else hops())
    for name, number in numbers.items():
        print(f"{number:>9,} {name}")
    for name in BEFORE:
        print(f"{fallen_percent(numbers, name):>9.1f} % {name} fallen since 747c0700")
    if chosen.lower:
        BUDGETS.write_text(lowered(BUDGETS.read_text(encoding="utf-8"), budgeted(numbers)), encoding="utf-8")


if __name__ == "__main__":
    main()
