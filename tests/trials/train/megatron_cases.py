"""Cases by megatron-core, and those in which one of its reductions is left out."""

from __future__ import annotations

from search_spaces.engines import MEGATRON_CORE
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case

PROGRAMS = "tests.trials.train.megatron_programs"
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
SP = {"sequence_parallel": True}


def megatron_case(name: str, shape: str = "gpt2", **fields: object) -> Case:
    return named_case(name, shape, engine=MEGATRON_CORE, **fields)


SEQUENCE = megatron_case("tp2-sequence", **TP2, **SP)
TIED = megatron_case("tied-pp2", "gpt2-tied", **PP2)
SHARDED = megatron_case("dp2-zero1", zero_stage=1, **DP2)
EXPERTS = megatron_case("ep2-dp2", "mixtral", expert_parallel=2, **DP2)
GATHERED = megatron_case("ep2-dp2-allgather", "mixtral", expert_parallel=2, expert_dispatcher="allgather", **DP2)
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
    ("finalize_model_grads._allreduce_non_tensor_model_parallel_grads", megatron_case("tp2-qk-norm", "qwen3", **TP2)),
    ("finalize_model_grads._allreduce_embedding_grad", TIED),
    ("param_and_grad_buffer.start_grad_sync", megatron_case("dp2", **DP2)),
    ("param_and_grad_buffer.start_grad_sync", SHARDED),
    ("param_and_grad_buffer.start_grad_sync", megatron_case("dp2-overlap", overlap_comm=True, **DP2)),
    ("mappings.forward", EXPERTS),
    ("mappings._reduce_scatter_along_first_dim", GATHERED),
    ("clip_grads.get_grad_norm_fp32", EXPERTS),
    ("clip_grads.get_grad_norm_fp32", SEQUENCE),
    ("clip_grads.get_grad_norm_fp32", TIED),
    ("clip_grads.get_grad_norm_fp32", SHARDED),
]
