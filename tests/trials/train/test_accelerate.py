"""Steps by accelerate compared with a plain GPT, its reductions left out, and its patches on a CPU left out."""

from __future__ import annotations

import shutil
from operator import attrgetter

import pytest

from search_spaces.engines import ACCELERATE
from search_spaces.model_shape import ACTIVATIONS
from tests.trials.train.engine_cases import (
    MUTATION_BOUND,
    PLACES,
    SPED,
    accelerate_case,
    difference_without,
    mutation_parameters,
    places_called,
)
from tests.trials.train.parity import NO_COMPILER, PROGRAMS, needs_accelerate, ranks_of
from trials.diagnostics.parity_cases import compiled_cases

pytestmark = [needs_accelerate, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]
ranks = ranks_of(ACCELERATE)


def test_ten_steps_are_those_of_a_plain_gpt(parity, record_property):
    parity.expect(SPED["sharded"], record_property)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason=NO_COMPILER)
@pytest.mark.parametrize("given", compiled_cases(engines=(ACCELERATE,)), ids=attrgetter("name"))
def test_so_are_compiled_ones(parity, given, record_property):
    parity.expect(given, record_property)


@pytest.mark.parametrize("sharding", [{}, {"zero_stage": 3, "data_parallel": 2}])
@pytest.mark.parametrize(("recomputation", "passes"), [("none", 8), ("full", 16)])
def test_recomputed_layers_have_a_second_forward_pass(ranks, sharding, recomputation, passes):
    """Counted is attention, since the recomputation stops before the end of the layer, where nothing more is needed."""
    given = accelerate_case("recomputed", activation_checkpointing=recomputation, **sharding)
    found = ranks.run(f"{PROGRAMS}:count_forward_passes", given.layout.num_gpus, {"case": given.to_json()})
    expected = passes * given.layout.grad_accum_steps
    assert [rank["LlamaAttention"] for rank in found] == [expected] * given.layout.num_gpus


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "clamped_swiglu"])
def test_an_activation_of_transformers_is_that_of_the_plain_gpt(name):
    import torch
    from transformers.activations import ACT2FN

    from trials.train.engines.transformers_model import ACTIVATIONS as NAMES
    from trials.train.selftest.reference import activate

    values = torch.linspace(-4, 4, 101, dtype=torch.float64)
    assert torch.allclose(ACT2FN[NAMES[name]](values), activate(values, name), rtol=0, atol=1e-12)


@pytest.mark.nightly
def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    assert places_called(ranks, [*SPED.values()]) == PLACES[ACCELERATE].keys()


@pytest.mark.walks
@pytest.mark.parametrize(("without", "given"), mutation_parameters(ACCELERATE))
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given):
    assert difference_without(ranks, parity, without, given).value > MUTATION_BOUND


PATCHES = {"device": "integer modulo by zero", "backend": "accelerate found 1 ranks of 2"}


@pytest.mark.nightly
@pytest.mark.parametrize("patch", PATCHES)
def test_without_a_patch_a_cpu_cannot_train(ranks, patch):
    """Fails once accelerate no longer needs it."""
    arguments = {"case": SPED["sharded"].to_json(), "steps": 1, "library": "accelerate", "patch": patch}
    answers = ranks.run(f"{PROGRAMS}:train_without_patch", 2, arguments)
    assert all(PATCHES[patch] in answer.get("error", "trained") for answer in answers), answers
