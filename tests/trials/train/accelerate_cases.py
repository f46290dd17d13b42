"""Cases by accelerate, and those in which one of its reductions is left out."""

from __future__ import annotations

from typing import Any

from search_spaces.engines import ACCELERATE
from tests.trials.train.megatron_cases import trainings
from tests.trials.train.parity import Parity
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case, Difference

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


def difference_without(ranks: WarmRanks, parity: Parity, place: str, given: Case) -> Difference:
    """Difference of three steps without the reductions of this place."""
    return parity.difference(given, trainings(train_recording(ranks, given, 3, place)))


def train_recording(ranks: WarmRanks, given: Case, steps: int, without: str | None = None) -> list[dict[str, Any]]:
    """Each rank's training, and its reductions by place."""
    arguments = {"case": given.to_json(), "steps": steps, "without": without}
    return ranks.run(f"{PROGRAMS}:train_recording", given.layout.num_gpus, arguments)
