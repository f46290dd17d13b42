"""Steps by megatron-core compared with a plain GPT, its reductions left out, and its patches on a CPU left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.engines import MEGATRON_CORE
from tests.trials.train.engine_cases import (
    DP2,
    MEGATRON,
    MUTATION_BOUND,
    PLACES,
    PP2,
    SP,
    TP2,
    difference_without,
    megatron_case,
    mutation_parameters,
    places_called,
)
from tests.trials.train.parity import PROGRAMS, needs_megatron, ranks_of
from trials.diagnostics.selftest import CPU_TOLERANCES

pytestmark = [needs_megatron, pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(400)]
ranks = ranks_of(MEGATRON_CORE)


@pytest.mark.walks
@pytest.mark.parametrize(("micro_batch_size", "is_another"), [(2, False), (1, True)])
def test_a_loss_that_balances_experts_is_over_the_tokens_of_a_micro_batch(parity, micro_batch_size, is_another):
    """The plain GPT takes it over micro-batches of two sequences."""
    given = megatron_case("balanced", "balanced-moe")
    layout = replace(given.layout, micro_batch_size=micro_batch_size, grad_accum_steps=8 // micro_batch_size)
    difference = parity.difference(given, parity.train(replace(given, layout=layout)))
    assert (difference.value > MUTATION_BOUND) is is_another


def test_ten_steps_are_those_of_a_plain_gpt(parity, record_property):
    parity.expect(MEGATRON["sequence"], record_property)


@pytest.mark.walks
def test_stages_come_before_data_parallel_ranks_with_tensor_parallel_ones_too(parity, record_property):
    """Megatron refuses this order where experts' groups differ from those of other layers, without experts, too."""
    parity.expect(megatron_case("order", **TP2, **PP2, **DP2, rank_order="tp-pp-dp"), record_property)


FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}
INTERLEAVED = {"virtual_pipeline_stages": 2, "pipeline_schedule": "interleaved_1f1b", **PP2}


@pytest.mark.parametrize(
    ("recomputation", "layers", "attentions", "mlps"),
    [
        ({}, 4, 4, 4),
        (FULL, 8, 8, 8),
        # Two chunks of two layers on each stage, one of each recomputed.
        ({**FULL, "recompute_layers": 1}, 6, 6, 6),
        (SELECTIVE, 4, 8, 4),
        ({**SELECTIVE, "recompute_modules": "mlp"}, 4, 4, 8),
        ({**SELECTIVE, "recompute_modules": "core_attn+mlp"}, 4, 8, 8),
    ],
)
def test_what_is_recomputed_has_a_second_forward_pass(ranks, recomputation, layers, attentions, mlps):
    given = megatron_case("recomputed", "llama", **INTERLEAVED, **recomputation)
    passes = ranks.run(f"{PROGRAMS}:count_forward_passes", given.layout.num_gpus, {"case": given.to_json()})
    count = given.layout.grad_accum_steps
    expected = {"TransformerLayer": layers, "DotProductAttention": attentions, "MLP": mlps}
    assert [{name: rank[name] / count for name in expected} for rank in passes] == [expected, expected]


@pytest.mark.walks
@pytest.mark.parametrize(
    ("modules", "norms", "experts", "shared"),
    [("moe", 9, 2, 2), ("shared_experts", 9, 1, 2), ("layernorm", 17, 1, 1), ("layernorm+mlp+moe", 17, 2, 2)],
)
def test_modules_of_experts_are_computed_again(ranks, parity, modules, norms, experts, shared):
    """One of four layers has experts, with a shared one beside them. A layer has two norms, the model another."""
    given = megatron_case(f"selective-{modules}", "deepseek-moe", **SELECTIVE, recompute_modules=modules)
    passes = ranks.run(f"{PROGRAMS}:count_forward_passes", 1, {"case": given.to_json()})
    count = given.layout.grad_accum_steps
    expected = {"RMSNorm": norms, "SequentialMLP": experts, "SharedExpertMLP": shared}
    assert {name: passes[0].get(name, 0) / count for name in expected} == expected
    assert parity.difference(given, parity.train(given)).value <= CPU_TOLERANCES["fp32"]


@pytest.mark.nightly
def test_every_reduction_has_a_test_that_leaves_it_out(ranks):
    cases = [MEGATRON[name] for name in ("sequence", "tied", "sharded", "experts")]
    assert places_called(ranks, cases) == PLACES[MEGATRON_CORE].keys()


@pytest.mark.walks
@pytest.mark.parametrize(("without", "given"), mutation_parameters(MEGATRON_CORE))
def test_without_any_one_reduction_the_training_is_another(ranks, parity, without, given):
    assert difference_without(ranks, parity, without, given).value > MUTATION_BOUND


@pytest.mark.parametrize(
    ("without", "seen"), [(None, [True, True]), ("optimizer._unscale_main_grads_and_check_for_nan", [False, True])]
)
def test_all_ranks_skip_a_step_in_which_the_gradients_of_one_overflow(ranks, without, seen):
    arguments = {"case": megatron_case("tp2-fp16", precision="fp16", **TP2).to_json(), "without": without}
    assert ranks.run(f"{PROGRAMS}:sees_an_overflow_of_the_last_rank", 2, arguments) == seen


NO_CUDA = "Torch not compiled with CUDA enabled"
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
}


@pytest.mark.nightly
@pytest.mark.parametrize("patch", PATCHES)
def test_without_a_patch_a_cpu_cannot_train(ranks, patch):
    """Fails once upstream no longer needs it."""
    given, words = PATCHES[patch]
    arguments = {"case": given.to_json(), "steps": 1, "library": "megatron_core", "patch": patch}
    answers = ranks.run(f"{PROGRAMS}:train_without_patch", given.layout.num_gpus, arguments)
    assert all(words in answer.get("error", "trained") for answer in answers)


@pytest.mark.walks
def test_a_tensor_is_freed_before_its_send_is_waited_for(ranks):
    """Fails once upstream waits, as gloo needs; then the patch `isend` goes."""
    given = megatron_case("interleaved", "llama", **INTERLEAVED)
    assert min(ranks.run(f"{PROGRAMS}:sends_freed_before_they_are_waited_for", 2, {"case": given.to_json()})) > 0
