"""Ten clipped steps of every kind of layout compared with a plain GPT that shares no code with the trial program."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import pytest
from _pytest.mark import ParameterSet

from tests.trials.train.parity import NO_COMPILER
from trials.diagnostics.parity_cases import compiled_cases, named_case
from trials.diagnostics.parity_models import SHAPES
from trials.diagnostics.selftest import CPU_TOLERANCES, tolerance_of
from trials.train.parallel.collectives import Reduction
from trials.train.selftest.training import optimizer_config

pytestmark = [pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]


@pytest.mark.walks
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_reference_learns_and_every_step_of_it_is_clipped(parity, shape, precision):
    reference = parity.reference(shape, precision)
    assert reference.losses[-1] < reference.losses[0] - 10 * CPU_TOLERANCES[precision]
    assert min(reference.grad_norms) > optimizer_config(precision).max_grad_norm


TP2, PP2, DP2, SP = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}, {"sequence_parallel": True}
DEEPSPEED = {"engine": "deepspeed"}
INTERLEAVED = {"pipeline_schedule": "interleaved_1f1b", "virtual_pipeline_stages": 2}
CASES = (
    named_case("stages", "gpt2-tied", zero_stage=2, activation_checkpointing="full", **INTERLEAVED, **PP2, **DP2),
    named_case("sequence", "llama", **SP, **TP2),
    named_case("experts", "mixtral", zero_stage=3, **DP2),
    named_case("documents", "gpt2-documents", attention_kernel="flash"),
    named_case("deepspeed-zero3", "llama", zero_stage=3, offload="optimizer", overlap_comm=True, **DEEPSPEED, **DP2),
    named_case("deepspeed-stages", "gpt2-tied", activation_checkpointing="full", **DEEPSPEED, **PP2),
)
"""A few of each kind; test_parity_arrays.py has them all."""


@pytest.mark.parametrize("given", CASES, ids=attrgetter("name"))
def test_ten_steps_of_a_layout_are_those_of_a_plain_gpt(parity, given, record_property):
    parity.expect(given, record_property)


def test_no_step_in_fp16_is_lost_to_a_loss_scale_that_has_yet_to_settle(parity):
    """Its third step overflows with a loss scale of 2**16, the first scale of trials."""
    given = named_case("fp16", "llama-tied", zero_stage=3, data_parallel=4, precision="fp16")
    difference = parity.difference(given, parity.train(given, steps=4))
    assert difference.value <= tolerance_of(given, "cpu"), f"{given.name} differs by {difference}"


@pytest.mark.nightly
@pytest.mark.parametrize("given", compiled_cases(), ids=attrgetter("name"))
def test_so_are_those_of_a_compiled_one(parity, given):
    if shutil.which("g++") is None:
        pytest.skip(NO_COMPILER)
    difference = parity.difference(given, parity.train(given))
    assert difference.value <= tolerance_of(given, "cpu"), f"{given.name} differs by {difference}"


@pytest.mark.walks
def test_half_precision_is_what_it_says(parity):
    given = named_case("bf16", precision="bf16")
    in_fp32 = parity.train(replace(given, layout=replace(given.layout, precision="fp32")))
    assert parity.difference(given, in_fp32).value > CPU_TOLERANCES["fp32"]


TENSOR = named_case("tp2", **TP2)
EXPERTS = named_case("experts-tp2", "deepseek-moe", expert_tensor_parallel=2, **TP2)
SHARDED = named_case("dp2-zero1", zero_stage=1, **DP2)
STAGES = named_case("deepspeed-pp2", **DEEPSPEED, **PP2)
MUTATIONS = [
    (Reduction.ROW_PARALLEL_OUTPUT, TENSOR),
    (Reduction.COLUMN_PARALLEL_INPUT_GRADIENT, TENSOR),
    (Reduction.EXPERT_INPUT_GRADIENT, EXPERTS),
    (Reduction.EXPERT_OUTPUT, EXPERTS),
    (Reduction.PARTIAL_GRADIENT, EXPERTS),
    (Reduction.EMBEDDING_OUTPUT, TENSOR),
    (Reduction.HEAD_INPUT_GRADIENT, TENSOR),
    (Reduction.LARGEST_LOGIT, TENSOR),
    (Reduction.EXPONENTIALS, TENSOR),
    (Reduction.TARGET_LOGIT, TENSOR),
    (Reduction.TIED_GRADIENT, named_case("tied-pp2", "gpt2-tied", **PP2)),
    (Reduction.TIED_GRADIENT, named_case("tied-pp2-dp2-zero3", "llama-tied", zero_stage=3, **PP2, **DP2)),
    (Reduction.TIED_GRADIENT, named_case("deepspeed-tied-pp2", "gpt2-tied", **DEEPSPEED, **PP2)),
    (Reduction.DATA_PARALLEL_GRADIENT, named_case("dp2", **DP2)),
    (Reduction.DATA_PARALLEL_GRADIENT, SHARDED),
    (Reduction.PARTIAL_GRADIENT, named_case("tp2-sequence", "llama", **SP, **TP2)),
    (Reduction.PARTIAL_GRADIENT, named_case("tp2-qk-norm", "qwen3", **TP2)),
    (Reduction.PARTIAL_GRADIENT, named_case("deepspeed-tp2-pp2", **SP, **DEEPSPEED, **TP2, **PP2)),
    (Reduction.NORM_OVER_DATA_RANKS, SHARDED),
    (Reduction.NORM_OVER_DATA_RANKS, named_case("dp2-zero3", zero_stage=3, **DP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, TENSOR),
    (Reduction.NORM_OVER_STAGES, named_case("pp2", **PP2)),
    (Reduction.NORM_OVER_TENSOR_RANKS, named_case("deepspeed-tp2", **DEEPSPEED, **TP2)),
    (Reduction.NORM_OVER_STAGES, STAGES),
    ("deepspeed_clipping", STAGES),
    ("deepspeed_tied_gradients", named_case("deepspeed-tied-pp2", "gpt2-tied", **DEEPSPEED, **PP2)),
    ("deepspeed_parameter_marks", named_case("deepspeed-tp2-dp2-zero1", zero_stage=1, **DEEPSPEED, **TP2, **DP2)),
    ("deepspeed_parameter_marks", named_case("tied-zero1", "gpt2-tied", zero_stage=1, **DEEPSPEED, **PP2, **DP2)),
]
IN_EACH_RUN = [
    (Reduction.ROW_PARALLEL_OUTPUT, "tp2"),
    (Reduction.TIED_GRADIENT, "tied-pp2"),
    (Reduction.DATA_PARALLEL_GRADIENT, "dp2-zero1"),
    (Reduction.NORM_OVER_STAGES, "deepspeed-pp2"),
    ("deepspeed_parameter_marks", "deepspeed-tp2-dp2-zero1"),
]


def mutations() -> Iterator[ParameterSet]:
    for without, given in MUTATIONS:
        marks = () if (without, given.name) in IN_EACH_RUN else pytest.mark.walks
        yield pytest.param(without, given, id=f"{without}-{given.name}", marks=marks)


def test_every_reduction_has_a_test_that_switches_it_off():
    assert {name for name, _ in MUTATIONS} >= set(Reduction)


@pytest.mark.parametrize(("without", "given"), list(mutations()))
def test_without_any_one_reduction_or_guard_the_training_is_another(parity, without, given):
    """All ranks train to the end: the difference in training is detected, not a failure."""
    trained = parity.train_without(given, without, steps=3)
    assert parity.difference(given, trained).value > CPU_TOLERANCES["fp32"]
