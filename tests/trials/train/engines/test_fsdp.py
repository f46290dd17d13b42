"""FSDP's count of the weights that a rank holds. For the training see the parity tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.trials.train.parity import PROGRAMS
from tests.trials.train.ranks import WarmRanks
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

PP2 = {"pipeline_parallel": 2}


@pytest.mark.parametrize(
    ("more", "copies"),
    [
        ({"zero_stage": 2}, 2),
        ({"zero_stage": 3}, 1),
        ({"zero_stage": 2, "activation_checkpointing": "full", **PP2}, 2),
        ({"zero_stage": 3, "activation_checkpointing": "full", **PP2}, 1),
    ],
    ids=["zero-2", "zero-3", "zero-2-pipeline", "zero-3-pipeline"],
)
def test_zero_2_holds_all_weights_between_forward_and_backward_and_zero_3_its_share(ranks: WarmRanks, more, copies):
    given, held = counted(ranks, **more)
    assert sum(held) == copies * given.model.parameters


@pytest.mark.parametrize(("zero_stage", "gives_back", "copies"), [(2, True, 1), (3, False, 2)])
def test_what_is_counted_is_what_is_there_whatever_the_layout_says(ranks: WarmRanks, zero_stage, gives_back, copies):
    given, held = counted(ranks, {"gives_back": gives_back}, zero_stage=zero_stage)
    assert sum(held) == copies * given.model.parameters


def counted(ranks: WarmRanks, options: Mapping[str, Any] = MappingProxyType({}), **more: Any) -> tuple[Case, list[int]]:
    """A layout of two data-parallel ranks, and each rank's counts."""
    given = named_case("held", "gpt2-tied", data_parallel=2, **more)
    arguments = {"case": given.to_json(), **options}
    return given, ranks.run(f"{PROGRAMS}:held_parameters", given.layout.num_gpus, arguments)
