"""Ready-made searches: the published layouts are in their spaces and are predicted to fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.samplers.cost_model_posterior import TuningTask
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import MemoryPosterior
from search_spaces.layouts.table import LayoutTable
from search_spaces.schema import presets

PUBLISHED = {
    # name: ranks, tensor, pipeline, data, as their authors state them; the last two ran without model parallelism.
    "mt-nlg-530b": (2240, 8, 35, 8),
    "yuan-245b": (2128, 8, 38, 7),
    "frontier-22b": (16, 1, 8, 2),
    "frontier-175b": (128, 4, 16, 2),
    "frontier-175b-deephyper": (128, 4, 16, 2),
    "frontier-1t": (1024, 4, 128, 2),
    "asc22-yuan": (4, 1, 1, 4),
    "zero-mini": (2, 1, 1, 2),
}
TODAY = {"llama3-70b-h100": (64, 4, 8, 2), "qwen3-30b-a3b-gb200": (8, 1, 1, 8), "gpt-oss-120b-gb200": (64, 1, 1, 64)}
"""Layouts of NeMo's performance summary, whose recipes have a loss that keeps less memory."""


def path_of(name: str) -> Path:
    return Path(presets.__file__).parents[1] / presets.SEARCHES / f"{name}.yaml"


def ready_made(name: str, *overrides: str) -> SearchSpec:
    return load_search_file(path_of(name), overrides)


@pytest.mark.parametrize("name", [*PUBLISHED, *TODAY])
def test_a_published_layout_is_the_baseline_of_its_search_and_fits(name: str):
    spec = ready_made(name)
    layout = spec.baseline
    assert layout is not None
    found = (layout.num_gpus, layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel)
    assert found == (PUBLISHED | TODAY)[name]
    assert layout in candidates_of(spec).layouts
    assert fits(spec) >= (0.5 if name in PUBLISHED else 0.1)


def fits(spec: SearchSpec) -> float:
    """Probability that the baseline fits, before any trial."""
    assert spec.baseline is not None
    peak = stage_memory(spec.model, LayoutTable.of([spec.baseline])).peak
    capacity = TuningTask(spec.model, spec.cluster, spec.objective, spec.measure.memory_limit_gib).capacity_gib
    return float(MemoryPosterior(capacity, []).fits(peak)[0])
