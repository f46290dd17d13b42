"""Loads of experts, and those that were not asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trials.measurement.test_protocol import MODEL, SPEC
from trials.measurement.expert_load import ExpertLoad, load_error

EXPERTS = replace(MODEL, num_experts=4, experts_per_token=2)
SAMPLES = 8 * SPEC.global_batch_size
"""Eight measured steps."""
GIVEN = SAMPLES * MODEL.seq_length * 2
"""Tokens that the experts of a layer are given in them."""


def spec(routing: str | None, engine: str = "torch"):
    layout = replace(SPEC.layout, engine=engine)
    return replace(SPEC, model=EXPERTS, layout=layout, measure=replace(SPEC.measure, routing=routing))


def counted(*shares: float, passes: int = 1) -> list[float]:
    return [share * GIVEN * passes for share in shares]


EVEN = counted(0.25, 0.25, 0.25, 0.25)


def test_loads_are_of_a_step_and_those_of_the_layer_with_the_most_loaded_expert():
    load = ExpertLoad.of(spec("learned"), [EVEN, counted(0.5, 0.25, 0.125, 0.125, passes=2)])
    assert (load.mean, load.most, load.skew) == (GIVEN / 8 / 4, GIVEN / 8 / 2, 2.0)


@pytest.mark.parametrize(
    ("routing", "layers"),
    [
        ("balanced", [EVEN]),
        ("balanced", [EVEN, counted(0.25, 0.25, 0.25, 0.25, passes=2)]),
        ("skewed(2)", [counted(0.5, 0.25, 0.125, 0.125)]),
        ("learned", [counted(0.5, 0.25, 0.25, 0)]),
        (None, [counted(1, 0, 0, 0)]),
    ],
)
def test_loads_that_were_asked_for_are_no_error(routing, layers):
    assert load_error(spec(routing), layers, SAMPLES) is None


@pytest.mark.parametrize(
    ("routing", "layer", "words"),
    [
        ("balanced", counted(0.5, 0.25, 0.125, 0.125), "2 times the mean of"),
        ("skewed(2)", EVEN, "1 times the mean of"),
        ("skewed(2)", counted(0.75, 0.25, 0, 0), "3 times the mean of"),
    ],
)
def test_other_loads_are_an_error_with_the_numbers(routing, layer, words):
    error = load_error(spec(routing), [EVEN, layer] if routing == "balanced" else [layer], SAMPLES)
    assert error is not None
    assert words in error
    assert f"measure.routing is {routing}" in error
    assert f"the mean of {GIVEN / 8 / 4:.0f}" in error


def test_a_token_that_no_expert_was_given_is_an_error_whatever_the_routing():
    layer = [*EVEN[:3], EVEN[3] - 1]
    assert f"were given {GIVEN - 1:g} tokens" in (load_error(spec(None), [layer], SAMPLES) or "")
    assert load_error(spec(None), [[0.0] * 4], SAMPLES) is not None


def test_a_routing_that_is_drawn_may_deviate_as_random_numbers_do():
    mean = GIVEN / 4
    little = 3 * mean**0.5
    layer = [mean + little, mean - little, mean, mean]
    assert load_error(spec("balanced", "megatron-core"), [layer], SAMPLES) is None
    assert load_error(spec("skewed(2)", "megatron-core"), [layer], SAMPLES) is not None
    much = [2 * mean, 0, mean, mean]
    assert load_error(spec("balanced", "megatron-core"), [much], SAMPLES) is not None
