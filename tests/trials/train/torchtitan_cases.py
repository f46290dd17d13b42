"""Cases by torchtitan, and those in which one of its reductions is left out."""

from __future__ import annotations

from search_spaces.engines import TORCHTITAN
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case

PROGRAMS = "tests.trials.train.torchtitan_programs"


def torchtitan_case(name: str, shape: str = "llama", **fields: object) -> Case:
    return named_case(name, shape, engine=TORCHTITAN, attention_kernel="flex", **fields)


TENSOR = torchtitan_case("tp2", tensor_parallel=2)
SEQUENCE = torchtitan_case("tp2-sequence", tensor_parallel=2, sequence_parallel=True)
STAGES = torchtitan_case("pp2", pipeline_parallel=2)
REPLICAS = torchtitan_case("dp4-zero3-replicas", data_parallel=4, zero_stage=3, data_parallel_replicas=2)
SHARDED = torchtitan_case("dp2-zero3", data_parallel=2, zero_stage=3)
EXPERTS = torchtitan_case("ep2-dp2", "mixtral", expert_parallel=2, data_parallel=2, zero_stage=3)
CONTEXT = torchtitan_case("cp2-zero3", "qwen3-long", context_parallel=2, zero_stage=3)
MUTATIONS = [
    *(
        (f"_cp_custom_ops.{place}", CONTEXT)
        for name in ("flex_cp_allgather", "flex_cp_allgather_backward")
        for place in (name, f"{name}#2")
    ),
    ("token_dispatcher._dispatch_token_exchange", EXPERTS),
    ("token_dispatcher._combine_token_exchange", EXPERTS),
    ("placement_types._reduce_value", TENSOR),
    ("placement_types._reduce_shard_tensor", SEQUENCE),
    ("loss.forward", TENSOR),
    ("loss.forward#2", TENSOR),
    ("loss.forward#3", TENSOR),
    ("utils.clip_grad_norm_", STAGES),
    ("utils._dist_reduce_tensor", SHARDED),
    ("placement_types._reduce_value", SHARDED),
    ("_fsdp_collectives.__call__", SHARDED),
    ("_fsdp_collectives.foreach_reduce", REPLICAS),
]
