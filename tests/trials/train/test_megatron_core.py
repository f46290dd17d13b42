"""Steps by megatron-core compared with a plain GPT, its reductions left out, and its stand-ins on a CPU left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from search_spaces.engines import MEGATRON_CORE
from search_spaces.layouts.covering_array import cover
from tests.trials.train.parity import Parity, needs_megatron
from tests.trials.train.ranks import RanksFailed, WarmRanks
from trials.diagnostics.parity_cases import axis_values, covering_cases, named_case
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, RankTraining, counting_fault, tolerance_of
from trials.train.selftest.training import STEPS

pytestmark = [needs_megatron, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]

PROGRAMS = "tests.trials.train.megatron_programs"
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
SP = {"sequence_parallel": True}
MOST_CASES = 12


@pytest.fixture(scope="module")
def ranks() -> Iterator[WarmRanks]:
    with closing(WarmRanks(MEGATRON_CORE)) as warm:
        yield warm


@pytest.fixture(scope="module")
def parity(ranks: WarmRanks) -> Parity:
    return Parity(ranks)


def megatron_case(name: str, shape: str = "gpt2", **fields: object) -> Case:
    return named_case(name, shape, engine=MEGATRON_CORE, **fields)


def few_cases() -> list[Case]:
    """Few cases that cover every value of every axis; `make parity-full` trains all."""
    given = [case for case in covering_cases(engines=(MEGATRON_CORE,)) if case.layout.num_gpus <= 4]
    shown = [list(axis_values(case).items()) for case in given]
    return [given[number] for number in cover(shown, [case.layout.num_gpus**2 for case in given])]


def test_few_cases_are_at_most_twelve():
    assert len(few_cases()) <= MOST_CASES


@pytest.mark.parametrize("given", few_cases(), ids=lambda case: case.name)
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, given, record_property):
    trained = parity.train(given)
    difference, tolerance = parity.difference(given, trained), tolerance_of(given, "cpu")
    record_property("difference", difference.value)
    assert difference.value <= tolerance, f"{given.name} differs by {difference}, {tolerance:.0e} are tolerated"
    assert counting_fault(given, trained, STEPS) is None


SEQUENCE = megatron_case("tp2-sequence", **TP2, **SP)
TIED = megatron_case("tied-pp2", "gpt2-tied", **PP2)
SHARDED = megatron_case("dp2-zero1", zero_stage=1, **DP2)
MUTATIONS = [
    ("mappings._reduce", megatron_case("tp2", **TP2)),
    ("mappings._reduce", SEQUENCE),
    ("mappings._reduce_scatter_along_first_dim", SEQUENCE),
    ("layers.backward", megatron_case("tp2", **TP2)),
    ("layers.backward", SEQUENCE),
    ("cross_entropy.forward", SEQUENCE),
    ("cross_entropy.forward#2", SEQUENCE),
    ("cross_entropy.forward#3", SEQUENCE),
    ("finalize_model_grads._allreduce_non_tensor_model_parallel_grads", SEQUENCE),
    ("finalize_model_grads._allreduce_embedding_grad", TIED),
    ("param_and_grad_buffer.start_grad_sync", megatron_case("dp2", **DP2)),
    ("param_and_grad_buffer.start_grad_sync", SHARDED),
    ("param_and_grad_buffer.start_grad_sync", megatron_case("dp2-overlap", overlap_comm=True, **DP2)),
    ("clip_grads.get_grad_norm_fp32", SEQUENCE),
    ("clip_grads.get_grad_norm_fp32", TIED),
    ("clip_grads.get_grad_norm_fp32", SHARDED),
]
BEFORE_TRAINING = {"language_module.setup_embeddings_and_output_layer"}
"""Reductions of a tied model's weights, which are then set."""


def train_recording(ranks: WarmRanks, given: Case, steps: int, without: str | None = None) -> list[dict]:
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(f"{PROGRAMS}:train_recording", given.layout.num_gpus, arguments)


def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    cases = (SEQUENCE, TIED, SHARDED)
    called = {place for given in cases for rank in train_recording(ranks, given, 1) for place in rank["places"]}
    assert called - BEFORE_TRAINING == {place for place, _ in MUTATIONS}


@pytest.mark.parametrize(("without", "given"), MUTATIONS, ids=[f"{place}-{given.name}" for place, given in MUTATIONS])
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given, record_property):
    answers = train_recording(ranks, given, 3, without)
    trained = [RankTraining.from_json({k: v for k, v in a["trained"].items() if k != "switched_off"}) for a in answers]
    difference = parity.difference(given, trained)
    record_property("difference", difference.value)
    assert difference.value > 10 * CPU_TOLERANCES["fp32"], f"without {without}: {difference}"


PATCHES = {
    "device_word": SHARDED,
    "current_device": SHARDED,
    "tensor_cuda": TIED,
    "tensor_type": megatron_case("dp2-zero1-bf16", zero_stage=1, precision="bf16", **DP2),
    "random_numbers": SHARDED,
    "synchronize": TIED,
    "isend": megatron_case("interleaved", "llama", virtual_pipeline_stages=2, **PP2),
    "sequence_parallel_norm": SEQUENCE,
}


@pytest.mark.parametrize("patch", PATCHES)
def test_without_a_stand_in_a_cpu_cannot_train(ranks, parity, patch):
    """Fails once upstream no longer needs it."""
    given = PATCHES[patch]
    arguments = {"case": given.to_json(), "steps": 3, "patch": patch}
    try:
        answers = ranks.run(f"{PROGRAMS}:train_without_patch", given.layout.num_gpus, arguments)
    except RanksFailed:
        return
    if any("error" in answer for answer in answers):
        return
    trained = [RankTraining.from_json({k: v for k, v in a["trained"].items() if k != "switched_off"}) for a in answers]
    assert parity.difference(given, trained).value > 10 * CPU_TOLERANCES["fp32"]


def test_every_stand_in_has_a_test_that_leaves_it_out():
    from trials.train.cpu_device.megatron_core import PATCHES as ALL

    assert {patch.name for patch in ALL} == set(PATCHES)
