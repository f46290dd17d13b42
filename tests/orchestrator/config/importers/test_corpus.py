"""Whole files, written as real ones are, and what the trainer does with each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.registry import read_source
from orchestrator.config.init import render_from
from orchestrator.config.loader import load_search_file
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from search_spaces.schema.validation import FILL_IN

CORPUS = Path(__file__).parent / "corpus"


def expectations(name: str) -> dict[str, dict[str, Any]]:
    """Expectations by file name, written from the trainers' sources.

    `model` has all fields that follow from the file, `like` another one and what differs. `layout` has what differs
    from a layout's defaults, and of ranks and batch all that follows, `adapters` that whole section. `notes` are words
    that are each in some note, `refused` the subject of each problem with words of its rule, `changed` those of values
    that trials would train otherwise, for which the baseline is refused.
    """
    return yaml.safe_load((CORPUS / "expected" / f"{name}.yaml").read_text(encoding="utf-8"))


MODELS = expectations("models")


def with_whole_model(expected: dict[str, Any]) -> dict[str, Any]:
    model = expected.get("model", {})
    like = MODELS[model["like"]] if "like" in model else {}
    return {**expected, "model": {name: value for name, value in {**like, **model}.items() if name != "like"}}


EXPECTED = {
    name: with_whole_model(expected)
    for part in ("scripts", "options", "configurations")
    for name, expected in expectations(part).items()
}
IMPORTED = [name for name in EXPECTED if "refused" not in EXPECTED[name]]
SAME = [name for name in IMPORTED if "changed" not in EXPECTED[name]]
REFUSED = [name for name in EXPECTED if "refused" in EXPECTED[name]]
_DEFAULTS = Layout().to_json()
_WITHOUT_DEFAULT = (
    *("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size", "grad_accum_steps", "num_nodes"),
)


def test_every_file_has_an_expectation():
    assert {path.name for path in CORPUS.iterdir() if path.is_file()} == EXPECTED.keys()
    assert len(EXPECTED) >= 60


def read(name: str) -> ImportedConfig:
    found = read_source(CORPUS / name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", IMPORTED)
def test_an_import_has_the_values_that_the_trainer_has(name):
    expected, found = EXPECTED[name], read(name)
    assert found.source == expected["source"]
    assert dict(found.model) == {key: value for key, value in expected.get("model", {}).items() if value is not None}
    assert with_defaults(found.layout) == with_defaults(expected.get("layout", {}))
    for key in ("global_batch_size", "num_nodes", "gpus_per_node", "accelerator"):
        assert getattr(found, key) == expected.get(key), key
    assert dict(found.adapters) == expected.get("adapters", {})
    assert found.launcher.get("slurm", {}) == expected.get("slurm", {})
    assert [problem.key for problem in found.changed] == expected.get("changed", [])
    for words in expected.get("notes", []):
        assert any(words in note for note in found.notes), (words, found.notes)


def with_defaults(layout: dict[str, Any]) -> dict[str, Any]:
    """The layout that a search file with these values has; ranks and batch only where they are known."""
    defaults = {name: value for name, value in _DEFAULTS.items() if name not in _WITHOUT_DEFAULT}
    return {**defaults, **{name: value for name, value in layout.items() if name != "num_nodes"}}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_no_search_expresses_is_refused_by_the_option_that_says_so(name):
    with pytest.raises(InputError) as refused:
        read(name)
    expected = EXPECTED[name]["refused"]
    assert {problem.key or "" for problem in refused.value.problems} == expected.keys()
    for problem in refused.value.problems:
        assert expected[problem.key or ""] in str(problem.rule)
        assert problem.fix


def is_whole(name: str) -> bool:
    """True if the file leaves nothing open but the machine's accelerator."""
    expected = EXPECTED[name]
    ranks = {"data_parallel", "micro_batch_size"} <= expected.get("layout", {}).keys()
    has_machine = {"num_nodes", "gpus_per_node", "global_batch_size"} <= expected.keys()
    needed = ModelShape.__dataclass_fields__.keys() - MODEL_DEFAULTS.keys()
    return ranks and has_machine and expected.get("model", {}).keys() >= needed


@pytest.mark.parametrize("name", [name for name in SAME if is_whole(name)])
def test_a_whole_import_loads_and_its_baseline_is_the_files_layout_and_can_be_planned(name, tmp_path):
    text, _ = render_from(CORPUS / name)
    text = text.replace(f"accelerator: {FILL_IN}", "accelerator: b200").replace(FILL_IN, "/shared/pretrain_gpt.py")
    (tmp_path / "search.yaml").write_text(text, encoding="utf-8")
    space = candidates_of(load_search_file(tmp_path / "search.yaml"))
    assert space.baseline in space.layouts
    assert space.baseline == replace(space.baseline, **read(name).layout).canonical()
