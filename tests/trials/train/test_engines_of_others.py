"""Steps by engines that others wrote compared with a plain GPT, their reductions left out, and their patches on a CPU
left out."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from search_spaces.decoding import decode
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.model_shape import ACTIVATIONS
from search_spaces.rules.check import engine_violations
from tests.trials.train.engine_cases import (
    CASES,
    DP2,
    MEGATRON,
    MUTATION_BOUND,
    PLACES,
    PP2,
    SP,
    SPED,
    TITAN,
    TP2,
    accelerate_case,
    difference_without,
    megatron_case,
    mutations,
    of_engine,
    places_called,
    torchtitan_case,
)
from tests.trials.train.parity import NO_COMPILER, PROGRAMS, only
from tests.trials.train.ranks import NO_ENGINE, RanksFailed
from trials.diagnostics.parity_cases import compiled_cases
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, RankTraining
from trials.trial import FailureReason

pytestmark = [pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]
walks, nightly = pytest.mark.walks, pytest.mark.nightly


@pytest.mark.parametrize(
    "given", [of_engine(case) for case in (MEGATRON["sequence"], TITAN["sharded"], SPED["sharded"])]
)
def test_ten_steps_are_those_of_a_plain_gpt(parity_of, given, record_property):
    parity_of(given.layout.engine).expect(given, record_property)


@nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason=NO_COMPILER)
@pytest.mark.parametrize("given", [of_engine(case) for case in compiled_cases(engines=(ACCELERATE,))])
def test_so_are_compiled_ones(parity_of, given, record_property):
    parity_of(ACCELERATE).expect(given, record_property)


@walks
@only(MEGATRON_CORE)
def test_stages_come_before_data_parallel_ranks_with_tensor_parallel_ones_too(parity_of, record_property):
    """Megatron refuses this order where experts' groups differ from those of other layers, without experts, too."""
    given = megatron_case("order", **TP2, **PP2, **DP2, rank_order="tp-pp-dp")
    parity_of(MEGATRON_CORE).expect(given, record_property)


@walks
@only(MEGATRON_CORE)
@pytest.mark.parametrize(("micro_batch_size", "is_another"), [(2, False), (1, True)])
def test_a_loss_that_balances_experts_is_over_the_tokens_of_a_micro_batch(parity_of, micro_batch_size, is_another):
    """The plain GPT takes it over micro-batches of two sequences."""
    given, parity = megatron_case("balanced", "balanced-moe"), parity_of(MEGATRON_CORE)
    layout = replace(given.layout, micro_batch_size=micro_batch_size, grad_accum_steps=8 // micro_batch_size)
    difference = parity.difference(given, parity.train(replace(given, layout=layout)))
    assert (difference.value > MUTATION_BOUND) is is_another


FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
STAGES = {"virtual_pipeline_stages": 2, **PP2}
INTERLEAVED = {"pipeline_schedule": "interleaved_1f1b", **STAGES}


def in_megatron(recomputation: dict[str, Any], layers: int, attentions: int, mlps: int) -> ParameterSet:
    """Forward passes of one micro-batch through two chunks of two layers on each stage."""
    passes = {"TransformerLayer": layers, "DotProductAttention": attentions, "MLP": mlps}
    return of_engine(megatron_case("recomputed", "llama", **INTERLEAVED, **recomputation), passes)


def of_experts(modules: str, norms: int, experts: int, shared: int) -> ParameterSet:
    """One of four layers has experts, with a shared one beside them. A layer has two norms, the model another."""
    passes = {"RMSNorm": norms, "SequentialMLP": experts, "SharedExpertMLP": shared}
    given = megatron_case(f"selective-{modules}", "deepseek-moe", **SELECTIVE, recompute_modules=modules)
    return of_engine(given, passes, marks=walks)


def in_torchtitan(recomputation: dict[str, Any], blocks: int, attentions: int) -> ParameterSet:
    passes = {"Llama3TransformerBlock": blocks, "GQAttention": attentions}
    return of_engine(torchtitan_case("recomputed", **recomputation), passes)


def in_accelerate(recomputation: str, passes: int, **sharding: Any) -> ParameterSet:
    """Counted is attention, since the recomputation stops before the end of the layer, where nothing more is needed."""
    given = accelerate_case("recomputed", activation_checkpointing=recomputation, **sharding)
    return of_engine(given, {"LlamaAttention": passes})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        in_megatron({}, 4, 4, 4),
        in_megatron(FULL, 8, 8, 8),
        in_megatron({**FULL, "recompute_layers": 1}, 6, 6, 6),
        in_megatron(SELECTIVE, 4, 8, 4),
        in_megatron({**SELECTIVE, "recompute_modules": "mlp"}, 4, 4, 8),
        in_megatron({**SELECTIVE, "recompute_modules": "core_attn+mlp"}, 4, 8, 8),
        of_experts("moe", 9, 2, 2),
        of_experts("shared_experts", 9, 1, 2),
        of_experts("layernorm", 17, 1, 1),
        of_experts("layernorm+mlp+moe", 17, 2, 2),
        in_torchtitan({}, 8, 8),
        in_torchtitan(FULL, 16, 16),
        in_torchtitan({**FULL, "recompute_layers": 3}, 11, 11),
        # All modules run again, but for the operations that are kept.
        in_torchtitan({**SELECTIVE, "recompute_modules": "ops"}, 16, 16),
        in_accelerate("none", 8),
        in_accelerate("full", 16),
        in_accelerate("none", 8, zero_stage=3, data_parallel=2),
        in_accelerate("full", 16, zero_stage=3, data_parallel=2),
    ],
)
def test_what_is_recomputed_has_a_second_forward_pass(parity_of, given, expected):
    parity = parity_of(given.layout.engine)
    passes = parity.ranks.run(f"{PROGRAMS}:count_forward_passes", given.layout.num_gpus, {"case": given.to_json()})
    count = given.layout.grad_accum_steps
    assert [{name: rank.get(name, 0) / count for name in expected} for rank in passes] == [expected] * len(passes)
    if given.model.num_experts is not None:
        assert parity.difference(given, parity.train(given)).value <= CPU_TOLERANCES["fp32"]


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name != "clamped_swiglu"])
@only(ACCELERATE)
def test_an_activation_of_transformers_is_that_of_the_plain_gpt(name):
    import torch
    from transformers.activations import ACT2FN

    from trials.train.engines.transformers_model import ACTIVATIONS as NAMES
    from trials.train.selftest.reference import activate

    values = torch.linspace(-4, 4, 101, dtype=torch.float64)
    assert torch.allclose(ACT2FN[NAMES[name]](values), activate(values, name), rtol=0, atol=1e-12)


@nightly
@pytest.mark.parametrize("given", [of_engine(next(iter(cases.values()))) for cases in CASES.values()])
def test_every_reduction_has_a_test_that_leaves_it_out(parity_of, given):
    engine = given.layout.engine
    assert places_called(parity_of(engine).ranks, [*CASES[engine].values()]) == PLACES[engine].keys()


@walks
@pytest.mark.parametrize(
    ("given", "without"), [of_engine(case, place) for engine in CASES for place, case in mutations(engine)]
)
def test_without_any_one_reduction_the_training_is_another(parity_of, given, without):
    parity = parity_of(given.layout.engine)
    assert difference_without(parity.ranks, parity, without, given).value > MUTATION_BOUND


@only(MEGATRON_CORE)
@pytest.mark.parametrize(
    ("without", "seen"), [(None, [True, True]), ("optimizer._unscale_main_grads_and_check_for_nan", [False, True])]
)
def test_all_ranks_skip_a_step_in_which_the_gradients_of_one_overflow(parity_of, without, seen):
    arguments = {"case": megatron_case("tp2-fp16", precision="fp16", **TP2).to_json(), "without": without}
    found = parity_of(MEGATRON_CORE).ranks.run(f"{PROGRAMS}:sees_an_overflow_of_the_last_rank", 2, arguments)
    assert found == seen


@only(TORCHTITAN)
def test_a_loss_that_is_no_number_is_no_result(parity_of):
    arguments = {"case": torchtitan_case("diverged").to_json()}
    found = parity_of(TORCHTITAN).ranks.run(f"{PROGRAMS}:reason_of_a_loss_that_is_no_number", 1, arguments)
    assert found == [FailureReason.RESULT_INVALID]


# -- what upstream does not do yet

V_SCHEDULE = {"pipeline_schedule": "zbv", **STAGES}


@walks
@only(TORCHTITAN)
@pytest.mark.parametrize(("stage", "is_wrong"), [(2, False), (3, True)])
def test_a_split_backward_pass_loses_gradients_of_resharded_weights(parity_of, stage, is_wrong):
    """Fails once torch mends it; then the rule in trainer_rules.py goes."""
    given, parity = torchtitan_case("zbv", zero_stage=stage, data_parallel=2, **V_SCHEDULE), parity_of(TORCHTITAN)
    assert any(engine_violations(given.layout, given.model)) is is_wrong
    assert (parity.difference(given, parity.train(given, 1)).value > MUTATION_BOUND) is is_wrong


@walks
@only(TORCHTITAN)
def test_a_split_backward_pass_cannot_use_what_selective_recomputation_kept(parity_of):
    """Fails once torch can; then the rule in trainer_rules.py goes."""
    given = torchtitan_case("zbv-selective", **SELECTIVE, recompute_modules="ops", **V_SCHEDULE)
    assert any(engine_violations(given.layout, given.model))
    with pytest.raises(RanksFailed, match="Trying to backward an extra time"):
        parity_of(TORCHTITAN).train(given, 1)


@walks
@only(MEGATRON_CORE)
def test_a_tensor_is_freed_before_its_send_is_waited_for(parity_of):
    """Fails once upstream waits, as gloo needs; then the patch `isend` goes."""
    arguments = {"case": megatron_case("interleaved", "llama", **INTERLEAVED).to_json()}
    found = parity_of(MEGATRON_CORE).ranks.run(f"{PROGRAMS}:sends_freed_before_they_are_waited_for", 2, arguments)
    assert min(found) > 0


NO_CUDA = "Torch not compiled with CUDA enabled"
ONE_RANK = torchtitan_case("one-rank")
PATCHES = {
    "device_word": (MEGATRON["sharded"], NO_CUDA),
    "current_device": (MEGATRON["sharded"], NO_CUDA),
    "tensor_cuda": (MEGATRON["tied"], NO_CUDA),
    "tensor_type": (megatron_case("dp2-zero1-bf16", zero_stage=1, precision="bf16", **DP2), "torch.BFloat16Tensor"),
    "random_numbers": (MEGATRON["sharded"], NO_CUDA),
    "synchronize": (MEGATRON["tied"], NO_CUDA),
    "stream": (MEGATRON["experts"], "torch.cuda.Stream requires CUDA support"),
    "router_kernel": (MEGATRON["experts"], "te_general_gemm"),
    "discarded_outputs": (
        megatron_case("layernorm", "mixtral", **SELECTIVE, recompute_modules="layernorm"),
        "FP8GlobalStateManager",
    ),
    "split_sizes": (MEGATRON["experts"], "incompatible function arguments"),
    "unequal_parts": (
        megatron_case("ep2-etp2", "deepseek-moe", expert_parallel=2, expert_tensor_parallel=2, **TP2, **SP, **DP2),
        "invalid tensor size",
    ),
    "sequence_parallel_norm": (MEGATRON["sequence"], "sequence parallel not supported by torch LayerNorm"),
    "device_type": (ONE_RANK, "module 'torch._C' has no attribute '_cuda_setDevice'"),
    "device_memory": (ONE_RANK, "module 'torch.cpu' has no attribute 'get_device_name'"),
    "triton": (ONE_RANK, "No module named 'triton'"),
    "flex_attention": (ONE_RANK, "FlexAttention does not support backward on CPU"),
    "micro_batches": (TITAN["stages"], "Expecting 4 arg_mbs but got 2"),
    "sum": (TITAN["sharded"], "Cannot use ReduceOp.PREMUL_SUM with Gloo"),
    "block_mask": (TITAN["context"], "No working C++ compiler found"),
    "device": (SPED["sharded"], "integer modulo by zero"),
    "backend": (SPED["sharded"], "accelerate found 1 ranks of 2"),
}


def answers_without(parity_of: Any, patch: str, given: Case, steps: int = 1, **options: str) -> list[dict[str, Any]]:
    """What ranks answer without a patch. Two change torchtitan's imports: ranks that have not imported it."""
    engine = given.layout.engine
    ranks = parity_of(NO_ENGINE if engine == TORCHTITAN else engine).ranks
    library = engine.replace("-", "_")
    arguments = {"case": given.to_json(), "steps": steps, "library": library, "patch": patch, **options}
    return ranks.run(f"{PROGRAMS}:train_without_patch", given.layout.num_gpus, arguments)


@nightly
@pytest.mark.parametrize(
    ("given", "patch", "words"), [of_engine(case, patch, words) for patch, (case, words) in PATCHES.items()]
)
def test_without_a_patch_a_cpu_cannot_train(parity_of, given, patch, words):
    """Fails once upstream no longer needs it."""
    options = {"compiler": "/no/compiler"} if patch == "block_mask" else {}
    answers = answers_without(parity_of, patch, given, **options)
    assert all(words in answer.get("error", "trained") for answer in answers), answers


@nightly
@only(TORCHTITAN)
def test_experts_multiply_in_16_bits_whatever_the_precision(parity_of):
    """Fails once upstream takes the weights' type; then the patch `grouped_mm` goes."""
    answers = answers_without(parity_of, "grouped_mm", TITAN["experts"], steps=3)
    trained = [decode(RankTraining, answer["trained"]) for answer in answers]
    assert parity_of(TORCHTITAN).difference(TITAN["experts"], trained).value > CPU_TOLERANCES["fp32"]
