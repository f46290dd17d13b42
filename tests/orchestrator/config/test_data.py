"""Training data of a search: checked before a launch, recorded, and constant afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import validate_space
from orchestrator.lifecycle.drive import attempt_factory_of
from search_spaces.errors import InputError
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.trials.token_files import document_ids, write_documents, write_tokens
from trials.files.folders import SearchFolder
from trials.trial import Attempt, Trial


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The search file's folder, with 200 tokens of a vocabulary of 64."""
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "tokens.bin", [i % 64 for i in range(200)])
    return tmp_path


def searching(folder: Path, data: str, *overrides: str) -> SearchSpec:
    return load_search_file(write_search(folder, f"{TINY_SEARCH}trainer:\n  data: {data}\n"), overrides)


TOKENS = "{kind: tokens, path: tokens.bin}"


def test_the_files_place_and_content_are_written_down_for_all_trials(folder):
    header = write_tokens(folder / "tokens.bin", range(64))
    spec = searching(folder, TOKENS)
    path = str(folder / "tokens.bin")
    written = {"kind": "tokens", "path": path, "num_tokens": 64, "checksum": header.checksum}
    assert spec_json_of(spec)["data"] == written
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.trainer == spec.trainer


def spec_json_of(spec: SearchSpec) -> dict:
    """Trainer section of a trial's spec.json."""
    trial = Trial("t0001", spec.baseline)
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 100.0)
    return attempt_factory_of(SearchFolder(Path("x")), spec).spec(trial, attempt).to_json()["trainer"]


def test_a_file_that_cannot_be_trained_on_is_refused_in_its_line(folder):
    with pytest.raises(InputError, match="vocabulary of 64, the model one of 32") as caught:
        searching(folder, TOKENS, "model.vocab_size=32")
    (problem,) = caught.value.problems
    assert (problem.code, problem.key, problem.line) == ("token_file", "trainer.data.path", TINY_SEARCH.count("\n") + 2)
    assert problem.fix


def test_where_tokens_attend_to_their_document_the_model_has_the_files_mean_length(folder):
    write_documents(folder / "tokens.bin", document_ids([8, 24, 4, 12, 81]))
    by_document = "{kind: tokens, path: tokens.bin, attention_mask: block_causal}"
    spec = searching(folder, by_document, "model.seq_length=32")
    assert spec.model.document_length == (8**2 + 24**2 + 4**2 + 12**2 + 16**2 + 2 * 32**2) / 128
    assert searching(folder, TOKENS, "model.seq_length=32").model.document_length is None
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.model == spec.model
    assert spec_json_of(spec)["data"]["attention_mask"] == "block_causal"


def test_a_file_that_changed_or_went_since_then_keeps_a_search_from_going_on(folder):
    spec = SearchSpec.from_json(searching(folder, TOKENS).to_json())
    validate_space(spec)
    write_tokens(folder / "tokens.bin", [(i + 1) % 64 for i in range(200)])
    with pytest.raises(InputError, match="is another file than it was: its checksum"):
        validate_space(spec)
    os.unlink(folder / "tokens.bin")
    with pytest.raises(InputError, match="No such file"):
        validate_space(spec)
