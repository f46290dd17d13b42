from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.recipe.build import build_recipe
from orchestrator.recipe.recipe import Recipe, checksum, recipe_yaml
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.schema.unsafe_text import is_printable
from search_spaces.schema.yaml_document import parse_document
from tests.orchestrator.recipe.builders import LAYOUT, SLOWER_LAYOUT, measured_trial, source_of

FIELDS = ["schema", "created_at", "parlay_version", "search_id", "trial", "layout", "verified"]
FIELDS += ["model", "cluster", "batch"]
FIELDS += ["objective", "measured", "training_rate", "memory", "repeats"]
FIELDS += ["ties", "verdict", "cost", "selection_reason", "rationale", "fastest", "pareto"]
FIELDS += ["compared_with", "constraints", "routing", "trainer", "python", "launcher"]
FIELDS += ["start", "exports", "fingerprint", "evidence", "caveats", "checksum"]

BUILT = build_recipe(
    source_of(measured_trial("t0001", SLOWER_LAYOUT, 0.2), measured_trial("t0002", LAYOUT, 0.1)),
    "2026-01-01T00:00:00.000000Z",
    "0.1.0",
    {"spec.json": "sha256:0"},
)


def recipe(**changes) -> Recipe:
    return replace(BUILT, **changes)


def reread(text: str) -> dict:
    return dict(parse_document(text.encode(), "recipe.yaml", Path()).data)


texts = st.text(max_size=20).filter(is_printable)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
layouts = st.builds(
    Layout,
    tensor_parallel=st.sampled_from([1, 2, 4]),
    pipeline_parallel=st.sampled_from([1, 2, 4]),
    micro_batch_size=st.integers(1, 8),
    grad_accum_steps=st.integers(1, 8),
    bucket_mib=st.none() | st.integers(1, 500),
)


@pytest.mark.slow
@given(layout=layouts, fingerprint=st.dictionaries(texts, values, max_size=4), caveats=st.lists(texts, max_size=3))
def test_what_is_written_reads_back_equal_with_the_same_checksum(layout, fingerprint, caveats):
    cluster = replace(recipe().cluster, gpus_per_node=layout.num_gpus)
    written = recipe(
        layout=layout, cluster=cluster, fingerprint=fingerprint, caveats=tuple(caveats), exports=BUILT.exports[:1]
    )
    data = reread(recipe_yaml(written))
    assert data["checksum"] == checksum(data)
    assert Recipe.from_json(data) == written


def test_recipe_yaml_has_the_contracts_fields_in_its_order_for_readers_of_both_yaml_versions():
    assert list(reread(recipe_yaml(recipe()))) == FIELDS
    text = recipe_yaml(recipe(fingerprint={"hash": "12e34", "time": "12:30:00", "octal": "0o17", "word": "no"}))
    assert yaml.safe_load(text) == reread(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": "parlay.recipe/2"}, "schema is 'parlay.recipe/2'"),
        ({"surprise": 1}, "surprise is unknown"),
        ({"model": {"num_layers": 2}}, "a value has the wrong type"),
        ({"ties": 3}, "ties is 3, not tuple"),
    ],
)
def test_what_is_no_recipe_of_ours_is_refused(change, words):
    with pytest.raises(InputError, match=words):
        Recipe.from_json(recipe().to_json() | change)


@pytest.mark.slow
@given(field=st.sampled_from(FIELDS), value=values)
def test_no_value_of_any_field_is_anything_but_read_or_refused(field, value):
    with suppress(InputError):
        Recipe.from_json(recipe().to_json() | {field: value})


def test_the_checksum_sees_every_field_and_a_missing_one_is_named():
    for field in FIELDS[1:]:
        data = recipe().to_json()
        del data[field]
        with pytest.raises(InputError, match=f"{field} is missing"):
            Recipe.from_json(data)
    data = recipe().to_json()
    for name in set(FIELDS) - {"checksum"}:
        assert checksum(data | {name: "other"}) != data["checksum"], name
