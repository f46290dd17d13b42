"""Exports of layouts that cover the axes, as the installed DeepSpeed and accelerate understand them.

torchtitan's are in tests/trials/trainers/torchtitan/test_export.py, megatron-core's in test_megatron_core.py beside it.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec

import pytest

from search_spaces.engines import ACCELERATE
from tests.oracles import configs
from tests.oracles.cases import NUM_CASES, SHAPES, export_cases
from tests.oracles.meanings import differences, of_accelerate, of_deepspeed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REFUSED_SHAPES = {"megatron-lm": {"geglu", "reglu"}, "deepspeed": {"deepseek", "latent"}}


@pytest.mark.parametrize("trainer", REFUSED_SHAPES)
def test_the_layouts_of_a_trainer_are_different_and_have_every_degree_precision_and_shape(trainer):
    layouts = [case.spec.layout for case in export_cases(trainer)]
    assert len({(case.spec.layout.key, case.spec.model) for case in export_cases(trainer)}) == NUM_CASES
    for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"):
        assert {getattr(layout, name) for layout in layouts} == {1, 2, 4}
    assert {layout.precision for layout in layouts} == {"fp32", "bf16", "fp16"}
    assert {layout.zero_stage for layout in layouts} == {0, 1, 2, 3}
    shapes = {name for name, model in SHAPES.items() if any(case.spec.model == model for case in export_cases(trainer))}
    assert shapes == set(SHAPES) - REFUSED_SHAPES[trainer]


def test_deepspeed_understands_every_layout_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)  # DeepSpeed would set its logging up
    for case in export_cases("deepspeed"):
        layout = case.spec.layout
        config = json.loads(case.files["ds_config.json"])
        meaning = of_deepspeed(configs.of_deepspeed(config, layout.data_parallel, layout.pipeline_parallel > 1))
        assert differences(case.spec, meaning) == [], layout.key


def test_accelerate_understands_every_layout_as_it_is(tmp_path):
    if find_spec(ACCELERATE) is None:
        pytest.skip("accelerate is not installed: the extra `trainers`")
    for case in export_cases(ACCELERATE):
        (tmp_path / "accelerate.yaml").write_text(case.files["accelerate.yaml"])
        meaning = of_accelerate(configs.of_accelerate(str(tmp_path / "accelerate.yaml")))
        assert differences(case.spec, meaning) == [], case.spec.layout.key
