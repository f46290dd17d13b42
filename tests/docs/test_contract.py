"""docs/contract.md is what the types generate, and has every schema id, option and flag."""

from __future__ import annotations

import ast
import re
from dataclasses import fields

import pytest
import typer

from orchestrator.cli.verbs import app
from orchestrator.interop.table_export import MEASURED_COLUMNS
from tests.contract.answers import answer_types, differences
from tests.contract.objects import OBJECTS
from tests.contract.page import page
from tests.docs.console import ROOT
from tests.sources import modules
from trials.outcome_types import MeasuredMetrics
from trials.trial import Flag

PAGE = (ROOT / "docs" / "contract.md").read_text()
WIDEST_ROW = 300


@pytest.mark.slow
def test_the_page_is_what_the_types_generate():
    assert page() == PAGE, "python -m tests.contract.page --write"


def test_no_row_of_a_table_is_longer_than_people_read():
    assert [line for line in PAGE.splitlines() if line.startswith("|") and len(line) > WIDEST_ROW] == []


def test_an_object_has_one_heading():
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    assert len(headings) == len(set(headings))
    assert {kind.__name__ for kinds in OBJECTS.values() for kind in kinds} <= set(headings)


def test_every_schema_id_is_there():
    ids = {found for module in modules() for found in re.findall(r'"(parlay\.\w+/\d+)"', (ROOT / module).read_text())}
    assert len(ids) > 40
    assert [schema for schema in sorted(ids) if f"`{schema}`" not in PAGE] == []


def test_every_option_is_there():
    verbs = typer.main.get_command(app).commands.values()
    every = [part for verb in verbs for part in (verb, *getattr(verb, "commands", {}).values())]
    options = {option for verb in every for parameter in verb.params for option in parameter.opts}
    assert [option for option in options if option.startswith("--") and option not in PAGE] == []


def test_every_measured_number_of_a_table_is_a_metric():
    assert set(MEASURED_COLUMNS) <= {field.name for field in fields(MeasuredMetrics)}


def test_answers_that_are_not_as_their_types_are_noticed():
    page_answer, plan = answer_types()["parlay.page/1"], answer_types()["parlay.plan/1"]
    whole = {"schema": "parlay.page/1", "address": "http://127.0.0.1:1/"}
    assert list(differences(whole, page_answer, "it")) == []
    assert list(differences(whole | {"port": 1}, page_answer, "it")) == ["it.port is not declared"]
    assert list(differences({"schema": "parlay.page/1"}, page_answer, "it")) == ["it.address is missing"]
    assert [found for found in differences({"num_layouts": "1"}, plan, "it") if "num_layouts" in found] != []


@pytest.mark.slow
def test_each_flag_is_set_by_who_writes_outcomes():
    writers = [
        ROOT / "trials" / "attempt_result.py",
        *(p for d in ("train", "external") for p in (ROOT / "trials" / d).rglob("*.py")),
    ]
    assert {flag for path in writers for flag in flags_set_in(path.read_text())} == {flag.name for flag in Flag}


def flags_set_in(source: str) -> set[str]:
    """Names of the flags in a source, without those that something is only compared with."""
    tree = ast.parse(source)
    compared = {node for compare in ast.walk(tree) if isinstance(compare, ast.Compare) for node in ast.walk(compare)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in compared)
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "Flag"}
