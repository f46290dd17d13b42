"""Steps by torchtitan compared with a plain GPT, its reductions left out, and its patches on a CPU left out."""

from __future__ import annotations

import pytest

from search_spaces.engines import TORCHTITAN
from tests.trials.train.engine_cases import (
    MUTATION_BOUND,
    PLACES,
    TITAN,
    difference_without,
    gate_cases,
    mutation_parameters,
    places_called,
    torchtitan_case,
)
from tests.trials.train.parity import PROGRAMS, needs_torchtitan, ranks_of
from trials.trial import FailureReason

pytestmark = [needs_torchtitan, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]
ranks = ranks_of(TORCHTITAN)


@pytest.mark.parametrize("given", gate_cases(TORCHTITAN))
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, given, record_property):
    parity.expect(given, record_property)


@pytest.mark.parametrize(
    ("recomputation", "blocks", "attentions"),
    [
        ({}, 8, 8),
        ({"activation_checkpointing": "full"}, 16, 16),
        ({"activation_checkpointing": "full", "recompute_layers": 3}, 11, 11),
        # All modules run again, but for the operations that are kept.
        ({"activation_checkpointing": "selective", "recompute_modules": "ops"}, 16, 16),
    ],
)
def test_what_is_recomputed_has_a_second_forward_pass(ranks, recomputation, blocks, attentions):
    given = torchtitan_case("recomputed", **recomputation)
    [passes] = ranks.run(f"{PROGRAMS}:count_forward_passes", 1, {"case": given.to_json()})
    expected = {"Llama3TransformerBlock": blocks, "GQAttention": attentions}
    assert {name: passes[name] / given.layout.grad_accum_steps for name in expected} == expected


def test_a_loss_that_is_no_number_is_no_result(ranks):
    arguments = {"case": torchtitan_case("diverged").to_json()}
    found = ranks.run(f"{PROGRAMS}:reason_of_a_loss_that_is_no_number", 1, arguments)
    assert found == [FailureReason.RESULT_INVALID]


@pytest.mark.walks
def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    assert places_called(ranks, [*TITAN.values()]) == PLACES[TORCHTITAN].keys()


@pytest.mark.walks
@pytest.mark.parametrize(("without", "given"), mutation_parameters(TORCHTITAN))
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given):
    assert difference_without(ranks, parity, without, given).value > MUTATION_BOUND
