"""Adapters that engines train compared with peft in one process, and the proof that nothing else trained."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from _pytest.mark import MarkDecorator, ParameterSet

from search_spaces.adapters import NAMES_OF_LIBRARY, Adapters
from search_spaces.decoding import decode
from search_spaces.engines import ACCELERATE, TORCHTITAN
from tests.trials.train.parity import NO_COMPILER, needs_accelerate, needs_torchtitan
from tests.trials.train.ranks import PEFT, RanksFailed, WarmRanks
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import Case, RankTraining, ReferenceTraining, counting_fault, largest_difference

pytestmark = [
    pytest.mark.processes,
    pytest.mark.minutes,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("engine-peft"),
    needs_accelerate,
]
PROGRAMS = "tests.trials.train.peft_programs"
STEPS, TOLERANCE = 5, 1e-5
LORA = Adapters(4, alpha=8.0)
FULL = {"activation_checkpointing": "full"}


def case(name: str, shape: str, adapters: Adapters = LORA, trainable: tuple[str, ...] = (), **fields: Any) -> Case:
    given = named_case(name, shape, **fields)
    return replace(given, model=replace(given.model, num_layers=2, adapters=adapters, trainable=trainable))


def named(given: Case, *marks: MarkDecorator) -> ParameterSet:
    return pytest.param(given, id=given.name, marks=marks)


@pytest.fixture(scope="module")
def ranks() -> Iterator[WarmRanks]:
    with closing(WarmRanks(PEFT)) as warm:
        yield warm


@pytest.fixture(scope="module")
def titan() -> Iterator[WarmRanks]:
    with closing(WarmRanks(TORCHTITAN)) as warm:
        yield warm


class Trained:
    def __init__(self, ranks: WarmRanks):
        self._ranks = ranks
        self.by_peft = cache(self._by_peft)

    def by_engine(self, given: Case, ranks: WarmRanks | None = None, **options: Any) -> list[dict[str, Any]]:
        arguments = {"case": given.to_json(), "steps": STEPS, **options}
        return (ranks or self._ranks).run(f"{PROGRAMS}:train_adapters", given.layout.num_gpus, arguments)

    def _by_peft(self, shape: str, adapters: Adapters, trainable: tuple[str, ...]) -> dict[str, Any]:
        arguments = {"case": case("peft", shape, adapters, trainable).to_json(), "steps": STEPS}
        [answer] = self._ranks.run(f"{PROGRAMS}:train_by_peft", 1, arguments)
        return answer


@pytest.fixture(scope="module")
def trained(ranks) -> Trained:
    return Trained(ranks)


def difference(trained: Trained, given: Case, answers: list[dict[str, Any]]) -> float:
    """Largest difference from peft of losses and gradient norms."""
    plain = trained.by_peft(given.shape, given.model.adapters, given.model.trainable)
    reference = ReferenceTraining(tuple(plain["losses"]), tuple(plain["grad_norms"]))
    return largest_difference([decode(RankTraining, answer["trained"]) for answer in answers], reference).value


def differences(trained: Trained, given: Case, answers: list[dict[str, Any]]) -> tuple[float, float]:
    """That difference, and the largest one of the adapters after the last step."""
    plain = trained.by_peft(given.shape, given.model.adapters, given.model.trainable)
    found: dict[str, Any] = {}
    for answer in answers:
        found |= answer["adapters"]
    assert found.keys() == plain["adapters"].keys()
    apart = (torch.tensor(found[key]) - torch.tensor(plain["adapters"][key]) for key in found)
    return difference(trained, given, answers), max(part.abs().max().item() for part in apart)


TORCH = {"engine": "torch"}
SPED = {"engine": ACCELERATE}
DP2, ZERO2, ZERO3 = {"data_parallel": 2}, {"zero_stage": 2}, {"zero_stage": 3}
PART = replace(LORA, target_modules=("q_proj", "v_proj", "up_proj"))
QLORA = replace(LORA, kind="qlora")
COPIES = case("dp2", "gpt2", **TORCH, **DP2, overlap_comm=True)
SHARDS = case("sped-zero3", "llama", **SPED, **DP2, **ZERO3, **FULL)
CASES = [
    COPIES,
    SHARDS,
    case("zero2", "llama", PART, **TORCH, **DP2, **ZERO2, **FULL),
    case("sped-dp2", "gpt2", **SPED, **DP2, **FULL),
    case("sped-modules", "llama", PART, ("norms", "o_proj", "lm_head", "embed_tokens"), **SPED, **DP2, **ZERO2),
    case("sped-qlora", "llama", QLORA, **SPED, **DP2),
]
WALKS = [
    case("one", "llama", **TORCH, **FULL),
    case("zero1", "llama", PART, **TORCH, **DP2, zero_stage=1),
    case("zero3", "gpt2", **TORCH, **DP2, **ZERO3),
    case("stages", "llama", **TORCH, pipeline_parallel=2),
    case("stages-zero3", "gpt2", **TORCH, pipeline_parallel=2, **DP2, **ZERO3),
    case("offload", "llama", **TORCH, offload="optimizer"),
    case("sped-one", "gpt2", **SPED),
    case("sped-part", "llama", PART, **SPED, **DP2),
    case("sped-zero2", "gpt2", **SPED, **DP2, **ZERO2),
    case("sped-qlora-gpt2", "gpt2", QLORA, **SPED, **FULL),
]
COMPILED = case("sped-compiled", "llama", **SPED, **DP2, **ZERO3, torch_compile=True)


@pytest.mark.parametrize(
    "given",
    [
        *map(named, CASES),
        *(named(given, pytest.mark.walks) for given in WALKS),
        named(COMPILED, pytest.mark.nightly, pytest.mark.skipif(shutil.which("g++") is None, reason=NO_COMPILER)),
    ],
)
def test_steps_and_adapters_are_those_of_peft(trained, given):
    answers = trained.by_engine(given)
    of_steps, of_adapters = differences(trained, given, answers)
    assert of_steps <= TOLERANCE
    assert of_adapters <= TOLERANCE
    assert counting_fault(given, [decode(RankTraining, answer["trained"]) for answer in answers], STEPS) is None
    plain = trained.by_peft(given.shape, given.model.adapters, given.model.trainable)
    assert given.model.trainable_parameters == plain["trainable"]


@pytest.mark.parametrize("given", [named(COPIES), named(SHARDS)])
def test_a_training_of_all_weights_is_another_and_counts_them(trained, given):
    answers = trained.by_engine(given, updates_all=True)
    assert differences(trained, given, answers)[0] > TOLERANCE
    fault = counting_fault(given, [decode(RankTraining, answer["trained"]) for answer in answers], STEPS)
    assert f"{2 * given.model.parameters} parameters of all ranks train" in str(fault)


def test_ddp_where_fsdp_is_asked_for_is_no_training_of_the_layout(trained):
    with pytest.raises(RanksFailed, match="accelerate trains a DistributedDataParallel, the layout asks for FSDP"):
        trained.by_engine(SHARDS, without_fsdp=True)


TITAN = replace(LORA, target_modules=NAMES_OF_LIBRARY[TORCHTITAN])
TITAN_FLEX = {"engine": TORCHTITAN, "attention_kernel": "flex"}


@needs_torchtitan
@pytest.mark.walks
@pytest.mark.parametrize(
    "given",
    [
        named(case("titan-zero3", "llama", TITAN, **TITAN_FLEX, **DP2, **ZERO3, **FULL)),
        named(case("titan-dp2", "llama", TITAN, **TITAN_FLEX, **DP2)),
        named(case("titan-tp2", "llama", TITAN, **TITAN_FLEX, tensor_parallel=2)),
        named(case("titan-pp2", "llama", TITAN, **TITAN_FLEX, pipeline_parallel=2)),
    ],
)
def test_torchtitans_own_adapters_train_as_those_of_peft_that_share_an_input(trained, titan, given):
    answers = trained.by_engine(given, titan)
    assert difference(trained, given, answers) <= TOLERANCE
    assert counting_fault(given, [decode(RankTraining, answer["trained"]) for answer in answers], STEPS) is None
