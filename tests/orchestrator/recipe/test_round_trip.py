"""Covering layouts and ready-made models, exported and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.recipe.exports import ExportStatus
from search_spaces.layouts.layout import AXES, Layout
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, chunk_layers
from search_spaces.model_shape import RESOLVED_FIELDS, ModelShape
from search_spaces.schema.presets import MODELS, preset, preset_names
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from tests.oracles.cases import export_cases
from tests.orchestrator.recipe.exported import NOT_OURS, exported, half, our_spec
from tests.orchestrator.recipe.test_exports_of_every_layout import ENGINES, read_export
from tests.trials.trainers.specs import LLAMA
from trials.trial import TrialSpec


@pytest.mark.walks
@pytest.mark.parametrize("trainer", NOT_OURS)
def test_layouts_that_cover_the_axes_are_read_back_as_they_were_exported(trainer):
    for case in export_cases(trainer):
        spec = replace(case.spec, gpus_per_node=case.spec.num_gpus // case.spec.num_nodes)
        layout, said = read_export(trainer, case.files, spec)
        exported_layout = replace(spec.layout, engine=ENGINES.get(trainer, trainer)).canonical()
        names = AXES.keys() - (SPLIT_FIELDS if layers_of(layout, spec) == layers_of(exported_layout, spec) else ())
        assert other_values(layout, exported_layout, names) == {}, case.files
        assert other_values(as_said(said, spec.model), spec.model, said) == {}, case.files


@pytest.mark.parametrize("trainer", ["megatron-lm", "megatron-bridge", "torchtitan"])
def test_chunks_of_a_stage_with_different_numbers_of_layers_are_read_back(trainer):
    kernel = {"attention_kernel": "flex"} if trainer == "torchtitan" else {}
    stages = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "last_stage_layers": 3}
    spec = our_spec(half(**stages, **kernel, pipeline_schedule="interleaved_1f1b"), replace(LLAMA, num_layers=7))
    files = exported(spec)[trainer].files
    assert trainer == "torchtitan" or "Ett|tt|tt|tL" in "".join(files.values())
    layout, _ = read_export(trainer, files, spec)
    assert layers_of(layout, spec) == layers_of(spec.layout, spec) == (2, 2, 2, 1)


@pytest.mark.parametrize("name", preset_names(MODELS))
def test_a_ready_made_model_is_read_back_from_each_export_or_refused_with_a_rule(name):
    model = validate(ModelSection, preset(MODELS, name)).shape()
    for trainer in NOT_OURS:
        kernel = {"attention_kernel": "flex"} if trainer == "torchtitan" else {}
        spec = our_spec(half(zero_stage=0, **kernel), model)
        export = exported(spec)[trainer]
        if export.status is ExportStatus.REFUSED:
            assert (export.rule or "").startswith(f"{trainer}.")
            continue
        _, said = read_export(trainer, export.files, spec)
        assert other_values(as_said(said, model), model, said) == {}, trainer


def layers_of(layout: Layout, spec: TrialSpec) -> tuple[int, ...]:
    """The layers of each chunk, by which an engine's own split may have the name of another."""
    return chunk_layers(spec.model, layout)


def as_said(said: dict[str, Any], model: ModelShape) -> ModelShape:
    """The model as an export says it; what it cannot say, such as the size of a vocabulary, is the model's."""
    return replace(model, **said)


def other_values(found: Any, expected: Any, names: Any) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, with both values."""
    pairs = {name: [getattr(each, RESOLVED_FIELDS.get(name, name)) for each in (found, expected)] for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}
