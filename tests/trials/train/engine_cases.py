"""Cases by engines that others wrote: those that the gate trains, and those in which a reduction is left out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import pytest
from _pytest.mark import MarkDecorator, ParameterSet

from search_spaces.decoding import decode
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import AXES
from tests.trials.train.parity import Parity, needed
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.covering_array import cover
from trials.diagnostics.parity_cases import RECOMPUTATION_AXES, case_values, covering_cases, named_case
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, LargestDifference, RankTraining

TP2, PP2, DP2, SP = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}, {"sequence_parallel": True}
EP2 = {"expert_parallel": 2, **DP2}
REPLICAS = {"data_parallel": 4, "zero_stage": 3, "data_parallel_replicas": 2}
MUTATION_BOUND = 10 * CPU_TOLERANCES["fp32"]
"""A training without one of its reductions differs by more."""
RECORDING = "tests.trials.train.recorded_reductions:train_recording"


def megatron_case(name: str, shape: str = "gpt2", **fields: object) -> Case:
    return named_case(name, shape, engine=MEGATRON_CORE, **fields)


def torchtitan_case(name: str, shape: str = "llama", **fields: object) -> Case:
    return named_case(name, shape, engine=TORCHTITAN, attention_kernel="flex", **fields)


def accelerate_case(name: str, shape: str = "llama", **fields: object) -> Case:
    return named_case(name, shape, engine=ACCELERATE, **fields)


MEGATRON = {
    "tp2": megatron_case("tp2", **TP2),
    "sequence": megatron_case("tp2-sequence", **TP2, **SP),
    "tied": megatron_case("tied-pp2", "gpt2-tied", **PP2),
    "sharded": megatron_case("dp2-zero1", zero_stage=1, **DP2),
    "experts": megatron_case("ep2-dp2", "mixtral", **EP2),
    "gathered": megatron_case("ep2-dp2-allgather", "mixtral", expert_dispatcher="allgather", **EP2),
    "qk-norm": megatron_case("tp2-qk-norm", "qwen3", **TP2),
    "copies": megatron_case("dp2", **DP2),
    "overlap": megatron_case("dp2-overlap", overlap_comm=True, **DP2),
}
TITAN = {
    "tensor": torchtitan_case("tp2", **TP2),
    "sequence": torchtitan_case("tp2-sequence", **TP2, **SP),
    "stages": torchtitan_case("pp2", **PP2),
    "replicas": torchtitan_case("dp4-zero3-replicas", **REPLICAS),
    "sharded": torchtitan_case("dp2-zero3", zero_stage=3, **DP2),
    "experts": torchtitan_case("ep2-dp2", "mixtral", zero_stage=3, **EP2),
    "context": torchtitan_case("cp2-zero3", "qwen3-long", context_parallel=2, zero_stage=3),
}
SPED = {
    "copies": accelerate_case("dp2", **DP2),
    "replicas": accelerate_case("dp4-zero3-replicas", **REPLICAS),
    "sharded": accelerate_case("dp2-zero3", zero_stage=3, **DP2),
}
CASES = {MEGATRON_CORE: MEGATRON, TORCHTITAN: TITAN, ACCELERATE: SPED}
PLACES = {
    MEGATRON_CORE: {
        "mappings._reduce": "tp2 sequence",
        "mappings._reduce_scatter_along_first_dim": "sequence gathered",
        "layers.backward": "tp2 sequence",
        "cross_entropy.forward": "sequence",
        "cross_entropy.forward#2": "sequence",
        "cross_entropy.forward#3": "sequence",
        "finalize_model_grads._allreduce_non_tensor_model_parallel_grads": "sequence qk-norm",
        "finalize_model_grads._allreduce_embedding_grad": "tied",
        "param_and_grad_buffer.start_grad_sync": "copies sharded overlap",
        "mappings.forward": "experts",
        "clip_grads.get_grad_norm_fp32": "experts sequence tied sharded",
    },
    TORCHTITAN: {
        "_cp_custom_ops.flex_cp_allgather": "context",
        "_cp_custom_ops.flex_cp_allgather#2": "context",
        "_cp_custom_ops.flex_cp_allgather_backward": "context",
        "_cp_custom_ops.flex_cp_allgather_backward#2": "context",
        "token_dispatcher._dispatch_token_exchange": "experts",
        "token_dispatcher._combine_token_exchange": "experts",
        "placement_types._reduce_value": "tensor sharded",
        "placement_types._reduce_shard_tensor": "sequence",
        "loss.forward": "tensor",
        "loss.forward#2": "tensor",
        "loss.forward#3": "tensor",
        "utils.clip_grad_norm_": "stages",
        "utils._dist_reduce_tensor": "sharded",
        "_fsdp_collectives.__call__": "sharded",
        "_fsdp_collectives.foreach_reduce": "replicas",
    },
    ACCELERATE: {
        "reducer": "copies",  # DistributedDataParallel's, which is not written in Python
        "_fsdp_collectives.__call__": "sharded",
        "placement_types._reduce_value": "sharded",
        "_fsdp_collectives.foreach_reduce": "replicas",
    },
}
"""Places of an engine's reductions, and the cases in which each is left out."""
NOT_OF_THE_TRAINING = {
    "language_module.setup_embeddings_and_output_layer",  # of a tied model's weights, which are then set
    "token_dispatcher._token_count_exchange",  # of sizes, without which ranks wait for each other
}


def mutations(engine: str) -> list[tuple[str, Case]]:
    """Each place of an engine's reductions with each case in which it is left out."""
    return [(place, CASES[engine][name]) for place, names in PLACES[engine].items() for name in names.split()]


def of_engine(given: Case, *values: object, marks: MarkDecorator | tuple[()] = ()) -> ParameterSet:
    """A case and further values as the parameters of a test that `only` its engine runs."""
    others = [str(value) for value in values if isinstance(value, str)]
    return pytest.param(
        given,
        *values,
        id="-".join([given.layout.engine, given.name, *others]),
        marks=[*needed(given.layout.engine), *([marks] if marks else [])],
    )


def covering_cases_of(engine: str) -> list[Case]:
    """Few cases of an engine that cover every precision, and in fp32 every recomputation and every value of every other
    axis, where it has an effect."""
    every = covering_cases(most_ranks=4, engines=(engine,))
    return [every[number] for number in cover(list(map(_shown, every)), [case.layout.num_gpus**2 for case in every])]


def _shown(case: Case) -> list[Hashable]:
    values = case_values(case)
    if case.layout.precision != "fp32":
        return [case.layout.precision]
    effective = [(axis, value) for axis, value in values.items() if axis not in AXES or case.layout.has_effect(axis)]
    return [*effective, tuple(values[axis] for axis in RECOMPUTATION_AXES)]


def difference_without(ranks: WarmRanks, parity: Parity, place: str, given: Case) -> LargestDifference:
    """Difference of three steps without the reductions of this place."""
    answers = [answer["trained"] for answer in train_recording(ranks, given, 3, place)]
    return parity.difference(given, [decode(RankTraining, answer) for answer in answers])


def places_called(ranks: WarmRanks, cases: Sequence[Case]) -> set[str]:
    """Places of all reductions in a step of these cases."""
    found = {place for given in cases for rank in train_recording(ranks, given, 1) for place in rank["places"]}
    return found - NOT_OF_THE_TRAINING


def train_recording(ranks: WarmRanks, given: Case, steps: int, without: str | None = None) -> list[dict[str, Any]]:
    """Each rank's training, and its reductions by place."""
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(RECORDING, given.layout.num_gpus, arguments)
