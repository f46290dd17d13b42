from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from search_spaces.errors import InputError
from search_spaces.layouts.axes import axis_type, axis_values, complete_axes
from search_spaces.layouts.layout import AXES, LAYOUT_FIELDS


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (4, (4,)),
        ("1f1b", ("1f1b",)),
        ([4, 1, 2], (4, 1, 2)),
        ({"min": 1, "max": 8, "factor": 2}, (1, 2, 4, 8)),
        ({"min": 3, "max": 20, "factor": 3}, (3, 9)),
        ({"min": 1, "max": 7, "step": 3}, (1, 4, 7)),
        ({"min": 0, "max": 3, "step": 1}, (0, 1, 2, 3)),
        ({"min": 5, "max": 5, "step": 100}, (5,)),
    ],
)
def test_an_axis_is_a_value_a_list_or_a_range(given, values):
    assert axis_values(given) == values


@pytest.mark.bad_input(16)
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "empty list"),
        ([1, 2, 1], "1 twice"),
        (["bf16", "bf16"], "'bf16' twice"),
        ({"min": 8, "max": 1, "step": 1}, "min 8 is more than max 1"),
        ({"min": 1, "max": 8, "step": 0}, "step is 0"),
        ({"min": 1, "max": 8, "factor": 1}, "factor is 1"),
        ({"min": 0, "max": 8, "factor": 2}, "min is 0"),
        ({"min": 1, "max": 8}, "keys min, max"),
        ({"min": 1, "max": 8, "step": 1, "factor": 2}, "keys min, max, step, factor"),
        ({"from": 1, "to": 8}, "keys from, to"),
        ({"min": 1, "max": True, "step": 1}, "max is true"),
        ({"min": 1.0, "max": 8, "step": 1}, "min is 1.0"),
        ({"min": 1, "max": 10**12, "step": 1}, "max is 1000000000000"),
        ({"min": 1, "max": 1_000_000, "step": 1}, "1000000 values"),
        (list(range(10_001)), "10001 values"),
    ],
)
def test_repeats_and_ranges_that_lead_nowhere_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        axis_values(given)


def test_one_and_true_are_different_values():
    assert axis_values([1, True]) == (1, True)


def test_every_field_that_is_not_given_gets_its_one_default():
    complete = complete_axes({"tensor_parallel": [1, 2]}, num_nodes=3)
    assert complete["tensor_parallel"] == (1, 2)
    assert complete["num_nodes"] == (3,)
    assert complete["bucket_mib"] == (None,)
    assert list(complete) == [f for f in LAYOUT_FIELDS if f not in ("data_parallel", "grad_accum_steps")]
    assert complete_axes(complete, num_nodes=7) == complete


def test_accumulation_is_an_axis_only_where_it_is_given():
    assert complete_axes({"grad_accum_steps": [1, 2]}, num_nodes=1)["grad_accum_steps"] == (1, 2)


def test_a_range_of_words_is_told_that_ranges_are_of_numbers():
    with pytest.raises(ValidationError, match="a value or a list: ranges are of numbers"):
        TypeAdapter(axis_type(AXES["cuda_graphs"])).validate_python({"min": 1, "max": 2, "step": 1})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cuda_graphs", "attn, mlp, moe_router, moe_preprocess, also several joined by + in this order; none, full"),
        ("pipeline_split", "embedding, loss, also several joined by + in this order; own, even"),
        ("rank_order", "tp-dp-pp, tp-pp-dp"),
    ],
)
def test_words_that_are_joined_are_told_from_those_that_are_not(name, words):
    assert AXES[name].choice_of(AXES[name].words, last=", ").startswith(words)


def test_parts_alone_are_listed_without_words_that_are_not_joined():
    assert AXES["cuda_graphs"].choice_of(("attn", "mlp", "attn+mlp")) == (
        "attn or mlp, also several joined by + in this order"
    )
