"""JSON schema of search files, and the reference page generated from it."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from orchestrator.config.loader import json_schema
from orchestrator.config.reference import reference
from search_spaces.schema import presets
from tests.kit import EVERYTHING, MINIMAL, TABLE_SEARCH, loaded, refusals

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


@pytest.mark.parametrize(
    "text", [MINIMAL, EVERYTHING, presets.preset_text(presets.SEARCHES, "quickstart"), TABLE_SEARCH]
)
def test_the_json_schema_accepts_what_is_read(text: str):
    VALIDATOR.check_schema(SCHEMA)
    VALIDATOR.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "line",
    [
        *("serch: {}", "search: {sampler: best}", "search: {max_trials: 0}", "search: {seed: 1.5}", "constraints: []"),
        *("measure: {min_steps: 4}", "baseline: {data_parallel: 2}", "launcher: {kind: pbs}", "objective: speed"),
        *(f"  micro_batch_size: {axis}" for axis in ("[]", "[1, 1]", "{min: 1, max: 2}", "two", "0", "[x]")),
    ],
)
def test_the_json_schema_refuses_what_is_refused(tmp_path: Path, line: str):
    text = f"{MINIMAL}{line}\n"
    refusals(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(yaml.safe_load(text))


def test_the_reference_page_says_what_the_schemas_say():
    page = Path(presets.__file__).parents[2] / "docs" / "search_file.md"
    assert page.read_text() == reference()
    assert "| `max_trials` | whole number from 1 to 1000000; default `30` |" in page.read_text()


def test_the_smallest_search_of_the_reference_page_is_a_search(tmp_path: Path):
    example = reference().split("<<'END'\n")[1].split("END\n")[0]
    assert loaded(tmp_path, example) == loaded(tmp_path)
