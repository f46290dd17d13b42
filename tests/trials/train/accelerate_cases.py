"""Cases by accelerate, and those in which one of its reductions is left out."""

from __future__ import annotations

from search_spaces.engines import ACCELERATE
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case

PROGRAMS = "tests.trials.train.accelerate_programs"


def accelerate_case(name: str, shape: str = "llama", **fields: object) -> Case:
    return named_case(name, shape, engine=ACCELERATE, **fields)


COPIES = accelerate_case("dp2", data_parallel=2)
REPLICAS = accelerate_case("dp4-zero3-replicas", data_parallel=4, zero_stage=3, data_parallel_replicas=2)
SHARDED = accelerate_case("dp2-zero3", data_parallel=2, zero_stage=3)
MUTATIONS = [
    ("reducer", COPIES),
    ("_fsdp_collectives.__call__", SHARDED),
    ("placement_types._reduce_value", SHARDED),
    ("_fsdp_collectives.foreach_reduce", REPLICAS),
]
"""Places of reductions; `reducer` is DistributedDataParallel's, which is not written in Python."""
