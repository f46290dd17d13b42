"""Trials of ranks that were forked after their imports train what trials of plain ranks train, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import result_of, wait_until_ended, written
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.trial_processes import MODEL, RULES, make_spec
from trials.files.folders import SearchFolder
from trials.measurement.step_log import read_metrics
from trials.trial import TrialState

Steps = Sequence[tuple[float | None, float | None]]
"""Loss and gradient norm of each step."""


class Trials:
    """Launches layouts as trials of both kinds; one launcher, so that servers live from trial to trial."""

    def __init__(self, root: Path):
        self._root = root
        self._count = 0
        self.launcher = LocalLauncher([[]])
        snapshot_code(root / "code")

    def steps(self, layout: Layout, warm_start: bool | None) -> Steps:
        self._count += 1
        rules = replace(RULES, time_limit_s=300.0, warm_start=warm_start)
        model = LLAMA if layout.engine == "torchtitan" else MODEL
        spec = make_spec(layout, model=model, trial=f"t{self._count:04d}", measure=rules)
        folder = SearchFolder(self._root / spec.search_id).attempt(spec.trial, spec.attempt)
        request = written(LaunchRequest(spec, folder, sys.executable, str(self._root / "code"), time_limit_s=400.0))
        self.launcher.launch(request)
        result = result_of(request, wait_until_ended(self.launcher, request))
        assert (result.state, result.excerpt) == (TrialState.MEASURED, None)
        assert result.outcome.started_warm is (warm_start is not False), folder.rank_log(0).read_text()
        return [(record.loss, record.grad_norm) for record in read_metrics(folder.metrics())]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    trials = Trials(tmp_path_factory.mktemp("losses"))
    yield trials
    trials.launcher.close()


LLAMA = replace(MODEL, position_embedding="rotary", norm="rmsnorm", gated_mlp=True)
DP2 = {"data_parallel": 2}
OTHERS = {
    "megatron-core": ({"zero_stage": 1, **DP2}, needs_megatron),
    "torchtitan": ({"zero_stage": 3, "attention_kernel": "flex", **DP2}, needs_torchtitan),
    "accelerate": ({"zero_stage": 3, **DP2}, needs_accelerate),
}


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tensor_parallel=2, pipeline_parallel=2, grad_accum_steps=2),
        Layout(zero_stage=1, engine="deepspeed", **DP2),
        *(
            pytest.param(Layout(engine=engine, **fields), marks=[needed, pytest.mark.walks])
            for engine, (fields, needed) in OTHERS.items()
        ),
        *(
            pytest.param(Layout(**fields, **DP2), marks=pytest.mark.walks)
            for fields in ({"zero_stage": 3, "activation_checkpointing": "full"}, {"precision": "bf16"})
        ),
    ],
    ids=lambda layout: layout.key,
)
def test_losses_are_equal_to_the_bit(trials: Trials, layout: Layout) -> None:
    warm, plain = trials.steps(layout, None), trials.steps(layout, False)
    both = min(len(warm), len(plain))  # the end of warm-up depends on the clock
    assert both >= RULES.min_steps
    assert warm[:both] == plain[:both]
