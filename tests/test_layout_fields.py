"""Fields of a layout appear in every list of them."""

from __future__ import annotations

from dashboards.report.sentences import FIELD_LABELS
from search_spaces.layouts.layout import LAYOUT_FIELDS
from search_spaces.schema.sections import BaselineSection, SpaceSection
from search_spaces.tables.measured_table import COLUMNS
from trials.diagnostics.parity_cases import COMPILED, VALUES

DERIVED = {"data_parallel"}


def test_every_field_is_a_column_of_the_measured_table():
    assert set(LAYOUT_FIELDS) <= set(COLUMNS)


def test_every_field_but_the_derived_one_can_be_searched_and_be_todays():
    assert set(LAYOUT_FIELDS) - DERIVED == set(LAYOUT_FIELDS) & set(SpaceSection.model_fields)
    assert set(LAYOUT_FIELDS) - DERIVED == set(BaselineSection.model_fields)


def test_every_field_has_a_word_in_the_report():
    assert set(FIELD_LABELS) == set(LAYOUT_FIELDS)


def test_every_field_that_changes_what_runs_is_compared_with_a_plain_gpt():
    compiled = {name for _, fields in COMPILED.values() for name in fields} & {"torch_compile"}
    follows_from_others = {"num_nodes", "grad_accum_steps"}
    assert set(LAYOUT_FIELDS) - follows_from_others == set(LAYOUT_FIELDS) & (set(VALUES) | compiled)
