"""Trials of ranks that were forked after their imports train what trials of plain ranks train, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.fork_server.losses import Trials, few_cases
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.trial_processes import MODEL
from trials.diagnostics.selftest import Case

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

OF_TORCH = Case("tp2-pp2", "gpt2", MODEL, Layout(tensor_parallel=2, pipeline_parallel=2, grad_accum_steps=2))
OF_MEGATRON = Case("zero1-megatron-core", "gpt2", MODEL, Layout(data_parallel=2, zero_stage=1, engine="megatron-core"))
LLAMA = replace(MODEL, position_embedding="rotary", norm="rmsnorm", gated_mlp=True)
OF_TORCHTITAN = Case(
    "zero3-torchtitan",
    "llama",
    LLAMA,
    Layout(data_parallel=2, zero_stage=3, engine="torchtitan", attention_kernel="flex"),
)
OF_ACCELERATE = Case("zero3-accelerate", "gpt2", MODEL, Layout(data_parallel=2, zero_stage=3, engine="accelerate"))
OF_DEEPSPEED = Case("zero1-deepspeed", "gpt2", MODEL, Layout(data_parallel=2, zero_stage=1, engine="deepspeed"))


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    trials = Trials(tmp_path_factory.mktemp("losses"))
    yield trials
    trials.launcher.close()


@pytest.mark.parametrize(
    "case",
    [
        OF_TORCH,
        OF_DEEPSPEED,
        pytest.param(OF_MEGATRON, marks=[needs_megatron, pytest.mark.walks]),
        pytest.param(OF_TORCHTITAN, marks=[needs_torchtitan, pytest.mark.walks]),
        pytest.param(OF_ACCELERATE, marks=[needs_accelerate, pytest.mark.walks]),
    ],
    ids=lambda case: case.name,
)
def test_losses_are_equal_to_the_bit(trials: Trials, case: Case) -> None:
    _expect_equal(trials, case)


@pytest.mark.walks
@pytest.mark.parametrize("case", few_cases(), ids=attrgetter("name"))
def test_so_are_those_of_other_layouts(trials: Trials, case: Case) -> None:
    """`python -m tests.trials.fork_server.all_losses` has the whole parity array."""
    _expect_equal(trials, case)


def _expect_equal(trials: Trials, case: Case) -> None:
    compared = trials.compared(case)
    assert compared.is_equal, f"warm {compared.warm}, plain {compared.plain}"
