"""Exports of layouts that cover the axes, as the installed accelerate understands them."""

from __future__ import annotations

import pytest

from benchmarks.check_exports import PROJECTS, check
from benchmarks.export_cases import NUM_CASES, export_cases
from search_spaces.engines import ACCELERATE

pytestmark = [pytest.mark.slow]


def test_the_layouts_have_every_stage_precision_and_replicas():
    layouts = [case.spec.layout for case in export_cases(ACCELERATE)]
    assert {layout.zero_stage for layout in layouts} == {0, 2, 3}
    assert {layout.precision for layout in layouts} == {"fp32", "bf16", "fp16"}
    assert {layout.data_parallel for layout in layouts} == {1, 2, 4}
    assert {layout.data_parallel_replicas for layout in layouts} == {1, 2}
    for name in ("torch_compile", "activation_checkpointing"):
        assert len({getattr(layout, name) for layout in layouts}) == 2


@pytest.mark.processes
def test_accelerate_understands_every_layout_as_it_is():
    project = next(project for project in PROJECTS if project.trainer == ACCELERATE)
    if (source := project.source(None)) is None:
        pytest.skip("accelerate is not installed: the extra `trainers`")
    found = check(project, source)
    assert [one for one in found if one.differing or not one.is_loaded] == []
    assert len(found) == NUM_CASES
