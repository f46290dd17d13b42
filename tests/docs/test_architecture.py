"""Diagrams of docs/architecture.md against tests/test_import_direction.py and the real packages."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

import pytest

from tests.docs.console import ROOT
from tests.sources import imported, modules, parsed
from tests.test_import_direction import MAY_IMPORT, level_of

PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROOMS, LEVELS = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)


def test_the_rooms_and_their_arrows_are_those_that_the_rule_allows():
    assert arrows() == {(room, other) for room, others in MAY_IMPORT.items() for other in others}


@pytest.mark.slow
def test_every_arrow_is_an_import_that_somebody_makes():
    made = {(module.split("/")[0], name.split(".")[0]) for module in modules() for name in imported(module)}
    assert not arrows() - made


def arrows() -> set[tuple[str, str]]:
    return set(re.findall(r"^ *(\w+) --> (\w+)$", ROOMS, re.MULTILINE))


def test_the_levels_of_the_orchestrator_are_drawn_from_the_top_to_the_bottom():
    drawn = [names.split(", ") for names in re.findall(r'\["(.*?)"\]', LEVELS)]
    levels = [{level_of(f"orchestrator.{name}") for name in names} for names in drawn]
    assert all(len(level) == 1 for level in levels)
    assert all(max(upper) > max(lower) for upper, lower in pairwise(levels))
    assert all(exists(name) for names in drawn for name in names)


def exists(name: str) -> bool:
    return (ROOT / "orchestrator" / name).is_dir() or (ROOT / "orchestrator" / f"{name}.py").is_file()


def test_the_tree_says_of_each_package_what_the_package_says():
    said = " ".join(PAGE.split("```")[1].split())
    packages = [module for module in modules() if module.endswith("__init__.py") and "migrations" not in module]
    words = {module: " ".join(str(ast.get_docstring(parsed(module)[0])).split()) for module in packages}
    assert [module for module in packages if f"{module.split('/')[-2]}/ {words[module]}" not in said] == []


def test_the_readme_shows_the_first_level_of_the_tree():
    (shown,) = re.findall(r"```\n(search_spaces/.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    rooms = re.findall(r"^(\w+)/ +(.*?)(?=^\w|\Z)", shown, re.MULTILINE | re.DOTALL)
    assert {room: " ".join(words.split()) for room, words in rooms} == {
        room: first_sentence(room) for room in MAY_IMPORT
    }


def first_sentence(room: str) -> str:
    words = " ".join(re.split(r"\n\S|\n  \w", PAGE.split(f"\n{room}/  ")[1])[0].split())
    return words.partition(". ")[0].removesuffix(".") + "."


def test_every_file_that_the_tree_names_lies_in_its_room():
    room, missing = "", []
    for line in PAGE.split("```")[1].splitlines():
        room = found[1] if (found := re.match(r"(\w+)/  ", line)) else room
        files = [path.rpartition("/")[2] for path in re.findall(r"[\w/]+\.py\b", line)]
        missing += [f"{room}/{file}" for file in files if not any((ROOT / room).rglob(file))]
    assert not missing
