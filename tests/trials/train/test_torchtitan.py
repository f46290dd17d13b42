"""Steps by torchtitan compared with a plain GPT, and its reductions left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from search_spaces.engines import TORCHTITAN
from search_spaces.rules.check import engine_violations
from tests.trials.train.few_cases import few_cases, quick_or_walk
from tests.trials.train.megatron_cases import trainings
from tests.trials.train.parity import Parity, needs_torchtitan
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.torchtitan_cases import (
    MUTATIONS,
    PROGRAMS,
    REPLICAS,
    SEQUENCE,
    SHARDED,
    STAGES,
    TENSOR,
    torchtitan_case,
)
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, counting_fault, tolerance_of
from trials.train.selftest.training import STEPS
from trials.trial import FailureReason

pytestmark = [needs_torchtitan, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]

MOST_CASES = 12
MUTATION_BOUND = 10 * CPU_TOLERANCES["fp32"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[WarmRanks]:
    with closing(WarmRanks(TORCHTITAN)) as warm:
        yield warm


@pytest.fixture(scope="module")
def parity(ranks: WarmRanks) -> Parity:
    return Parity(ranks)


def test_few_cases_are_at_most_twelve():
    assert len(few_cases(TORCHTITAN)) <= MOST_CASES


@pytest.mark.parametrize("given", [quick_or_walk(case) for case in few_cases(TORCHTITAN)])
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, given, record_property):
    trained = parity.train(given)
    difference, tolerance = parity.difference(given, trained), tolerance_of(given, "cpu")
    record_property("difference", difference.value)
    assert difference.value <= tolerance, f"{given.name} differs by {difference}, {tolerance:.0e} are tolerated"
    assert counting_fault(given, trained, STEPS) is None


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


@pytest.mark.parametrize(("stage", "is_wrong"), [(2, False), (3, True)])
def test_a_split_backward_pass_loses_gradients_of_resharded_weights(parity, stage, is_wrong):
    """Fails once torch mends it; then the rule in torchtitan_rules.py goes."""
    fields = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "pipeline_schedule": "zbv", "data_parallel": 2}
    given = torchtitan_case("zbv", zero_stage=stage, **fields)
    assert any(engine_violations(given.layout, given.model)) is is_wrong
    assert (parity.difference(given, parity.train(given, 1)).value > MUTATION_BOUND) is is_wrong


def test_a_loss_that_is_no_number_is_no_result(ranks):
    given = torchtitan_case("diverged")
    program = f"{PROGRAMS}:reason_of_a_loss_that_is_no_number"
    assert ranks.run(program, 1, {"case": given.to_json()}) == [FailureReason.RESULT_INVALID]


def train_without(ranks: WarmRanks, given: Case, steps: int, without: str | None) -> list[dict]:
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(f"{PROGRAMS}:train_recording", given.layout.num_gpus, arguments)


def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    cases = (TENSOR, SEQUENCE, STAGES, REPLICAS, SHARDED)
    called = {place for given in cases for rank in train_without(ranks, given, 1, None) for place in rank["places"]}
    assert called == {place for place, _ in MUTATIONS}


@pytest.mark.walks
@pytest.mark.parametrize(("without", "given"), MUTATIONS, ids=[f"{place}-{given.name}" for place, given in MUTATIONS])
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given, record_property):
    difference = parity.difference(given, trainings(train_without(ranks, given, 3, without)))
    record_property("difference", difference.value)
    assert difference.value > MUTATION_BOUND, f"without {without}: {difference}"
