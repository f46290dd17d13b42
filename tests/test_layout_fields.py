"""Fields of a layout that a list leaves out are named here."""

from __future__ import annotations

from search_spaces.engines import OWN_ENGINES
from search_spaces.layouts.layout import AXES, LAYOUT_FIELDS
from trials.diagnostics.named_parity_cases import COMPILED, FEATURES
from trials.diagnostics.parity_cases import VALUES


def test_every_field_that_changes_what_runs_is_compared_with_a_plain_gpt():
    named = {name for _, fields in ({**COMPILED, **FEATURES}).values() for name in fields}
    follows_from_others = {"num_nodes", "grad_accum_steps"}
    needs_a_gpu = {"matmul_precision"}
    of_other_trainers = {name for name in LAYOUT_FIELDS if not set(AXES[name].engines) & set(OWN_ENGINES)}
    of_no_training = {"settings"}
    compared = set(LAYOUT_FIELDS) - follows_from_others - needs_a_gpu - of_other_trainers - of_no_training
    assert compared == set(LAYOUT_FIELDS) & (set(VALUES) | named)
