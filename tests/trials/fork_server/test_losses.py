"""Trials of ranks that were forked after their imports train what trials of plain ranks train, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from orchestrator.search.code_snapshot import snapshot_code
from search_spaces.layouts.layout import Layout
from tests.kit import LLAMA
from tests.orchestrator.launchers.attempts import result_of, wait_until_ended, written
from tests.trials.fork_server.servers import serve
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.trial_processes import MODEL, RULES, make_spec
from trials.files.folders import SearchFolder, read_lines
from trials.measurement.step_log import StepRecord
from trials.trial import TrialState

pytestmark = pytest.mark.timeout(300)

Steps = Sequence[tuple[float | None, float | None]]
"""Loss and gradient norm of each step."""


@pytest.fixture
def steps(tmp_path: Path) -> Iterator[Callable[[Layout, bool | None], Steps]]:
    """Steps of a layout's trial of one of both kinds, by a launcher of its own, which has few kinds of servers."""
    root, launcher, numbers = tmp_path, LocalLauncher([[]]), count(1)
    snapshot_code(root / "code")

    def steps_of(layout: Layout, warm_start: bool | None) -> Steps:
        rules = replace(RULES, time_limit_s=300.0, warm_start=warm_start)
        model = replace(MODEL, **LLAMA) if layout.engine == "torchtitan" else MODEL
        spec = make_spec(layout, model=model, trial=f"t{next(numbers):04d}", measure=rules)
        folder = SearchFolder(root / spec.search_id).attempt(spec.trial, spec.attempt)
        request = written(LaunchRequest(spec, folder, sys.executable, str(root / "code"), time_limit_s=400.0))
        if warm_start is not False:
            serve(launcher, request)
        launcher.launch(request)
        result = result_of(request, wait_until_ended(launcher, request))
        assert (result.state, result.excerpt) == (TrialState.MEASURED, None)
        assert result.outcome.started_warm is (warm_start is not False), folder.rank_log(0).read_text()
        return [(record.loss, record.grad_norm) for record in read_lines(StepRecord, folder.metrics())]

    yield steps_of
    launcher.close()


DP2 = {"data_parallel": 2}
OTHERS = {
    "megatron-core": ({"zero_stage": 1, **DP2}, (needs_megatron, pytest.mark.nightly)),
    "torchtitan": ({"zero_stage": 3, "attention_kernel": "flex", **DP2}, (needs_torchtitan, pytest.mark.walks)),
    "accelerate": ({"zero_stage": 3, **DP2}, (needs_accelerate, pytest.mark.nightly)),
}


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(Layout(tensor_parallel=2, pipeline_parallel=2, grad_accum_steps=2), marks=pytest.mark.walks),
        Layout(zero_stage=1, engine="deepspeed", **DP2),
        *(pytest.param(Layout(engine=engine, **fields), marks=marks) for engine, (fields, marks) in OTHERS.items()),
        pytest.param(Layout(precision="bf16", **DP2), marks=pytest.mark.walks),
        pytest.param(Layout(zero_stage=3, activation_checkpointing="full", **DP2), marks=pytest.mark.nightly),
    ],
    ids=lambda layout: layout.key,
)
def test_losses_are_equal_to_the_bit(steps: Callable[[Layout, bool | None], Steps], layout: Layout) -> None:
    warm, plain = steps(layout, None), steps(layout, False)
    both = min(len(warm), len(plain))  # the end of warm-up depends on the clock
    assert both >= RULES.min_steps
    assert warm[:both] == plain[:both]
