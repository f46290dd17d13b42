"""Steps by torchtitan compared with a plain GPT, its reductions left out, and its patches on a CPU left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from search_spaces.decoding import decode
from search_spaces.engines import TORCHTITAN
from search_spaces.rules.check import engine_violations
from tests.trials.train.engine_cases import (
    MUTATION_BOUND,
    PLACES,
    TITAN,
    difference_without,
    mutation_parameters,
    places_called,
    torchtitan_case,
)
from tests.trials.train.parity import PROGRAMS, needs_torchtitan, ranks_of
from tests.trials.train.ranks import NO_ENGINE, RanksFailed, WarmRanks
from trials.diagnostics.selftest import CPU_TOLERANCES, RankTraining
from trials.trial import FailureReason

pytestmark = [needs_torchtitan, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]
ranks = ranks_of(TORCHTITAN)


def test_ten_steps_are_those_of_a_plain_gpt(parity, record_property):
    parity.expect(TITAN["sharded"], record_property)


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


@pytest.mark.nightly
def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    assert places_called(ranks, [*TITAN.values()]) == PLACES[TORCHTITAN].keys()


@pytest.mark.walks
@pytest.mark.parametrize(("without", "given"), mutation_parameters(TORCHTITAN))
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given):
    assert difference_without(ranks, parity, without, given).value > MUTATION_BOUND


V_SCHEDULE = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "pipeline_schedule": "zbv"}


@pytest.mark.walks
@pytest.mark.parametrize(("stage", "is_wrong"), [(2, False), (3, True)])
def test_a_split_backward_pass_loses_gradients_of_resharded_weights(parity, stage, is_wrong):
    """Fails once torch mends it; then the rule in trainer_rules.py goes."""
    given = torchtitan_case("zbv", zero_stage=stage, data_parallel=2, **V_SCHEDULE)
    assert any(engine_violations(given.layout, given.model)) is is_wrong
    assert (parity.difference(given, parity.train(given, 1)).value > MUTATION_BOUND) is is_wrong


@pytest.mark.walks
def test_a_split_backward_pass_cannot_use_what_selective_recomputation_kept(ranks, parity):
    """Fails once torch can; then the rule in trainer_rules.py goes."""
    fields = {"activation_checkpointing": "selective", "recompute_modules": "ops", **V_SCHEDULE}
    given = torchtitan_case("zbv-selective", **fields)
    assert any(engine_violations(given.layout, given.model))
    with pytest.raises(RanksFailed, match="Trying to backward an extra time"):
        parity.train(given, 1)


ONE_RANK = torchtitan_case("one-rank")
PATCHES = {
    "device_type": (ONE_RANK, "module 'torch._C' has no attribute '_cuda_setDevice'"),
    "device_memory": (ONE_RANK, "module 'torch.cpu' has no attribute 'get_device_name'"),
    "triton": (ONE_RANK, "No module named 'triton'"),
    "flex_attention": (ONE_RANK, "FlexAttention does not support backward on CPU"),
    "micro_batches": (TITAN["stages"], "Expecting 4 arg_mbs but got 2"),
    "sum": (TITAN["sharded"], "Cannot use ReduceOp.PREMUL_SUM with Gloo"),
    "block_mask": (TITAN["context"], "No working C++ compiler found"),
}


@pytest.fixture(scope="module")
def ranks_without_engine() -> Iterator[WarmRanks]:
    """Ranks that have not imported torchtitan: two of its patches change its imports."""
    with closing(WarmRanks(NO_ENGINE)) as warm:
        yield warm


@pytest.mark.nightly
@pytest.mark.parametrize("patch", PATCHES)
def test_without_a_patch_a_cpu_cannot_train(ranks_without_engine, patch):
    """Fails once upstream no longer needs it."""
    given, words = PATCHES[patch]
    arguments = {"case": given.to_json(), "steps": 1, "library": "torchtitan", "patch": patch}
    arguments |= {"compiler": "/no/compiler"} if patch == "block_mask" else {}
    answers = ranks_without_engine.run(f"{PROGRAMS}:train_without_patch", given.layout.num_gpus, arguments)
    assert all(words in answer.get("error", "trained") for answer in answers)


@pytest.mark.nightly
def test_experts_multiply_in_16_bits_whatever_the_precision(ranks_without_engine, parity):
    """Fails once upstream takes the weights' type; then the patch `grouped_mm` goes."""
    arguments = {"case": TITAN["experts"].to_json(), "steps": 3, "library": "torchtitan", "patch": "grouped_mm"}
    answers = ranks_without_engine.run(f"{PROGRAMS}:train_without_patch", 2, arguments)
    trained = [decode(RankTraining, answer["trained"]) for answer in answers]
    assert parity.difference(TITAN["experts"], trained).value > CPU_TOLERANCES["fp32"]
