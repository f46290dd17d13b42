"""Fields of a layout that a list leaves out are named here."""

from __future__ import annotations

from search_spaces.layouts.layout import LAYOUT_FIELDS
from trials.diagnostics.named_parity_cases import COMPILED
from trials.diagnostics.parity_cases import VALUES


def test_every_field_that_changes_what_runs_is_compared_with_a_plain_gpt():
    compiled = {name for _, fields in COMPILED.values() for name in fields} & {"torch_compile"}
    follows_from_others = {"num_nodes", "grad_accum_steps"}
    needs_a_gpu = {"matmul_precision"}
    compared = set(LAYOUT_FIELDS) - follows_from_others - needs_a_gpu
    assert compared == set(LAYOUT_FIELDS) & (set(VALUES) | compiled)
