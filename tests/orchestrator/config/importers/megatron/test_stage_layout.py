from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.megatron.fields import texts_of
from search_spaces.errors import InputError
from tests.trials.train.parity import needs_megatron

SPLIT = ("virtual_pipeline_stages", "pipeline_split", "first_stage_layers", "last_stage_layers")
OF_MEGATRON = ("Ettt|(tt|)*29,m|L", "Et*2|(tt|)*5t|tmL", "Et|(tt|)*6mL", "(E|)*1t*3|(|ab)*2L", "Et|t*12,tL", "E*tL")


def read(layout: str, stages: int | str, more: str = "") -> Any:
    named = f'--pipeline-model-parallel-layout "{layout}" --pipeline-model-parallel-size {stages} {more}'
    return read_launch_script(
        f"torchrun --nproc-per-node 8 pretrain_gpt.py --hidden-size 256 --micro-batch-size 1 {named}"
    )


@pytest.mark.parametrize(
    ("layout", "stages", "expected"),
    [
        ("Ett|ttL", 2, (1, "own", None, None)),
        ("Et|ttL", 2, (1, "embedding", None, None)),
        ("Et|tt|tt|tL", 2, (2, "embedding+loss", None, None)),
        ("Et*3|(t*4|)*6,t*4mL", 4, (2, "embedding", None, None)),
        ("Et|ttt|ttt|tt|t|ttt|ttt|ttL", 4, (2, "own", 2, 4)),
        ("Ettt|ttt|ttt|tmL", 4, (1, "own", None, 1)),
        ("Et*4|(t*4|)*14tmL", 8, (2, "own", None, 5)),
        ("Et|tt|t|ttL", "$PP", (None, None, None, None)),
        ("$LAYOUT", 2, (None, None, None, None)),
    ],
)
def test_a_layout_is_read_as_the_split_that_it_is(layout, stages, expected):
    found = read(layout, stages)
    assert tuple(found.layout.get(name) for name in SPLIT) == expected
    is_asked_for = "$" in f"{layout}{stages}"
    start = f"--pipeline-model-parallel-layout is '{layout}', which was not used: "
    assert ({*SPLIT} <= {*found.in_doubt}) is is_asked_for
    assert any(note.startswith(start) for note in found.notes) is is_asked_for


@pytest.mark.parametrize(
    ("layout", "stages", "rule"),
    [
        ("Ett|ttX", 2, "the text has E, then a t"),
        ("(t*999|)*999" * 20, 2, "the text has E, then a t"),
        ("Et|t|tL", 2, "every pipeline stage has as many chunks"),
        ("E|ttttL", 2, "every model chunk has a layer"),
        ("Ettm|ttL", 2, "layers of further tokens are in the chunk of the loss"),
        ("Et|tt|t|ttL", 4, "all chunks have the same number of layers"),
        ("Ett|ttL", 2, "the layout has as many t as the model has layers"),
    ],
)
def test_another_layout_is_refused_by_the_rule_that_it_breaks(layout, stages, rule):
    with pytest.raises(InputError) as refused:
        read(layout, stages, "--num-layers 6" if rule.endswith("layers") and "as many t" in rule else "")
    (problem,) = refused.value.problems
    assert (problem.key, problem.rule[: len(rule)]) == ("--pipeline-model-parallel-layout", rule)


@needs_megatron
@pytest.mark.slow
@pytest.mark.parametrize("text", OF_MEGATRON)
def test_texts_are_read_as_megatron_reads_them(text):
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

    try:
        theirs = PipelineParallelLayerLayout.parse_str_to_list(text)
    except AssertionError:
        theirs = None
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    assert texts_of(text) == (theirs and ["".join(letters[layer.name] for layer in chunk) for chunk in theirs])
