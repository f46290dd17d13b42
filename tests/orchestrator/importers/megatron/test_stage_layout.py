from __future__ import annotations

from typing import Any

import pytest

from orchestrator.importers.megatron.layout_fields import LAYOUT_FIELDS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.megatron.value_rules import MEGATRON_VALUE_RULES
from orchestrator.importers.settings import Setting, Settings
from tests.trials.train.parity import needs_megatron

NAME = "pipeline-model-parallel-layout"
SPLIT = ("virtual_pipeline_stages", "pipeline_split", "first_stage_layers", "last_stage_layers")
OF_MEGATRON = ("Ettt|(tt|)*29,m|L", "Et*2|(tt|)*5t|tmL", "Et|(tt|)*6mL", "(E|)*1t*3|(|ab)*2L", "Et|t*12,tL", "E*tL")


def options(layout: Any, stages: int | str = 2, **others: Any) -> Settings:
    given = {NAME: layout, "pipeline-model-parallel-size": stages, **others}
    doubt = "the script does not set it"
    settings = {name: Setting(value, doubt=doubt if value == "$PP" else None) for name, value in given.items()}
    return Settings(settings, MEGATRON_LM_OPTIONS)


@pytest.mark.parametrize(
    ("layout", "stages", "expected"),
    [
        ("Ett|ttL", 2, (1, None, None, None)),
        ("Et|ttL", 2, (1, "embedding", None, None)),
        ("Et|tt|tt|tL", 2, (2, "embedding+loss", None, None)),
        ("Et*3|(t*4|)*6,t*4mL", 4, (2, "embedding", None, None)),
        ("Et|ttt|ttt|tt|t|ttt|ttt|ttL", 4, (2, None, 2, 4)),
        ("Ettt|ttt|ttt|tmL", 4, (1, None, None, 1)),
    ],
)
def test_a_layout_is_read_as_the_split_that_it_is(layout, stages, expected):
    found = options(layout, stages)
    assert [*found.problems(MEGATRON_VALUE_RULES)] == []
    assert tuple(LAYOUT_FIELDS[name](found) for name in SPLIT) == expected


@pytest.mark.parametrize(
    ("layout", "stages", "rule"),
    [
        ("Ett|ttX", 2, "the text has E, then a t"),
        ("(t*999|)*999" * 20, 2, "the text has E, then a t"),
        ("Et|t|tL", 2, "every pipeline stage has as many chunks"),
        ("E|ttttL", 2, "every model chunk has a layer"),
        ("Ettm|ttL", 2, "layers of further tokens are in the chunk of the loss"),
        ("Et|tt|t|ttL", 4, "all chunks have the same number of layers"),
    ],
)
def test_another_layout_is_refused_by_the_rule_that_it_breaks(layout, stages, rule):
    (problem,) = options(layout, stages).problems(MEGATRON_VALUE_RULES)
    assert (problem.key, problem.rule[: len(rule)]) == (f"--{NAME}", rule)
    assert problem.fix


def test_a_layout_has_the_models_layers_and_no_split_without_stages():
    (problem,) = options("Ett|ttL", **{"num-layers": 6}).problems(MEGATRON_VALUE_RULES)
    assert problem.rule == "the layout has as many t as the model has layers"
    found = options("Et|tt|t|ttL", "$PP")
    assert [*found.problems(MEGATRON_VALUE_RULES)] == []
    assert [LAYOUT_FIELDS[name](found) for name in SPLIT] == [None] * 4


@needs_megatron
@pytest.mark.slow
@pytest.mark.parametrize("text", OF_MEGATRON)
def test_texts_are_read_as_megatron_reads_them(text):
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    from orchestrator.importers.megatron.stage_layout import texts_of

    try:
        theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
    except AssertionError:
        theirs = None
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    found = texts_of(text)
    assert found == (theirs and ["".join(letters[layer.name] for layer in chunk) for chunk in theirs])
