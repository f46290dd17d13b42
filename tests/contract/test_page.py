"""docs/contract.md is what the types generate, and JSON answers that are not as their types are noticed."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from orchestrator.interop.table_export import MEASURED_COLUMNS
from tests.contract.answers import answer_types, differences
from tests.contract.page import PAGE, page
from tests.sources import ROOT, modules
from trials.outcome_types import MeasuredMetrics


@pytest.mark.slow
def test_the_page_is_what_the_types_generate_and_has_every_schema_id():
    text = PAGE.read_text()
    assert page() == text, "python -m tests.contract.page --write"
    ids = {found for module in modules() for found in re.findall(r'"(parlay\.\w+/\d+)"', (ROOT / module).read_text())}
    assert len(ids) > 40
    assert [schema for schema in sorted(ids) if f"`{schema}`" not in text] == []


def test_every_measured_number_of_a_table_is_a_metric():
    assert set(MEASURED_COLUMNS) <= {field.name for field in fields(MeasuredMetrics)}


def test_answers_that_are_not_as_their_types_are_noticed():
    page_answer, plan = answer_types()["parlay.page/1"], answer_types()["parlay.plan/1"]
    whole = {"schema": "parlay.page/1", "address": "http://127.0.0.1:1/"}
    assert list(differences(whole, page_answer, "it")) == []
    assert list(differences(whole | {"port": 1}, page_answer, "it")) == ["it.port is not declared"]
    assert list(differences({"schema": "parlay.page/1"}, page_answer, "it")) == ["it.address is missing"]
    assert [found for found in differences({"num_layouts": "1"}, plan, "it") if "num_layouts" in found] != []
