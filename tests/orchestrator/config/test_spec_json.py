"""search.json: saving and loading of a SearchSpec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.config.spec import SEARCH_SCHEMA, SearchSpec
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from tests.kit import EVERYTHING, MINIMAL, loaded


@pytest.mark.parametrize("text", [MINIMAL, EVERYTHING])
def test_a_search_written_down_is_read_back_the_same(tmp_path: Path, text: str):
    spec = loaded(tmp_path, text)
    written = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    assert written["schema"] == SEARCH_SCHEMA
    assert SearchSpec.from_json(written) == spec
    assert candidates_of(SearchSpec.from_json(written)).layouts == candidates_of(spec).layouts


@pytest.mark.parametrize("schema", ["parlay.search/2", None])
def test_a_newer_or_other_search_json_is_refused(tmp_path: Path, schema: str | None):
    with pytest.raises(InputError, match=r"this Parlay reads parlay\.search/1"):
        SearchSpec.from_json(loaded(tmp_path).to_json() | {"schema": schema})
    with pytest.raises(InputError):
        SearchSpec.from_json(json.loads("[]"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"model": None}, "is not a valid search record"),
        ({"cluster": {"gpus_per_node": 4}}, "accelerator is missing"),
        ({"measure": {"min_step": 3}}, "min_step"),
        ({"baseline": {"tensor": 1}}, "unknown layout field 'tensor'"),
        ({"objective": "speed"}, "'speed' is not a valid Objective"),
        ({"global_batch_size": "16"}, "global_batch_size is '16'"),
    ],
)
def test_a_damaged_search_json_is_refused_with_what_is_wrong(tmp_path: Path, damage, words: str):
    with pytest.raises(InputError, match=words):
        SearchSpec.from_json(loaded(tmp_path).to_json() | damage)


@pytest.mark.parametrize("key", ["name", "model", "space", "launcher", "baseline", "candidates", "work_dir"])
def test_a_search_json_without_one_of_its_keys_is_refused_by_its_name(tmp_path: Path, key: str):
    written = loaded(tmp_path).to_json()
    del written[key]
    with pytest.raises(InputError, match=f"{key} is missing"):
        SearchSpec.from_json(written)
