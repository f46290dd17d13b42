"""Cases by megatron-core, and those in which one of its reductions is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from search_spaces.engines import MEGATRON_CORE
from tests.trials.train.parity import Parity
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import CPU_TOLERANCES, Case, Difference, RankTraining

PROGRAMS = "tests.trials.train.megatron_programs"
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
SP = {"sequence_parallel": True}


def megatron_case(name: str, shape: str = "gpt2", **fields: object) -> Case:
    return named_case(name, shape, engine=MEGATRON_CORE, **fields)


SEQUENCE = megatron_case("tp2-sequence", **TP2, **SP)
TIED = megatron_case("tied-pp2", "gpt2-tied", **PP2)
SHARDED = megatron_case("dp2-zero1", zero_stage=1, **DP2)
MUTATION_BOUND = 10 * CPU_TOLERANCES["fp32"]
"""A training without one of its reductions differs by more."""
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


def difference_without(ranks: WarmRanks, parity: Parity, place: str, given: Case) -> Difference:
    """Difference of three steps without the reductions of this place."""
    return parity.difference(given, trainings(train_recording(ranks, given, 3, place)))


def train_recording(ranks: WarmRanks, given: Case, steps: int, without: str | None = None) -> list[dict[str, Any]]:
    """Each rank's training, and its reductions by place."""
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(f"{PROGRAMS}:train_recording", given.layout.num_gpus, arguments)


def trainings(answers: Sequence[dict[str, Any]]) -> list[RankTraining]:
    """Trainings of all ranks."""
    return [RankTraining.from_json({k: v for k, v in a["trained"].items() if k != "switched_off"}) for a in answers]
