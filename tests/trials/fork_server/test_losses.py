"""Trials of ranks that were forked after their imports train what trials of plain ranks train, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from search_spaces.layouts.layout import Layout
from tests.orchestrator.launchers.attempts import result_of, wait_until_ended, written
from tests.trials.train.trial_processes import MODEL, RULES, make_spec
from trials.diagnostics.parity_cases import covering_cases
from trials.diagnostics.selftest import Case
from trials.files.folders import SearchFolder
from trials.measurement.step_log import read_metrics
from trials.trial import TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ONE = Case("tp2-pp2", "gpt2", MODEL, Layout(tensor_parallel=2, pipeline_parallel=2, grad_accum_steps=2))
OF_DEEPSPEED = Case("zero1-deepspeed", "gpt2", MODEL, Layout(data_parallel=2, zero_stage=1, engine="deepspeed"))


class Trials:
    """Launches a case as a trial, warm or plain; one launcher, so that servers live from case to case."""

    def __init__(self, root: Path):
        self._root = root
        self._count = 0
        self.launcher = LocalLauncher([[]])
        snapshot_code(root / "code")

    def losses(self, case: Case, warm_start: bool | None) -> list[tuple[float | None, float | None]]:
        """Loss and gradient norm of each step."""
        self._count += 1
        spec = make_spec(
            case.layout,
            model=case.model,
            trial=f"t{self._count:04d}",
            measure=replace(RULES, time_limit_s=300.0, warm_start=warm_start),
        )
        folder = SearchFolder(self._root / spec.search_id).attempt(spec.trial, spec.attempt)
        request = written(LaunchRequest(spec, folder, sys.executable, str(self._root / "code"), time_limit_s=400.0))
        self.launcher.launch(request)
        result = result_of(request, wait_until_ended(self.launcher, request))
        assert (result.state, result.excerpt) == (TrialState.MEASURED, None)
        assert result.outcome is not None
        assert result.outcome.started_warm is (warm_start is not False), folder.rank_log(0).read_text()
        return [(record.loss, record.grad_norm) for record in read_metrics(folder.metrics())]


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    trials = Trials(tmp_path_factory.mktemp("losses"))
    yield trials
    trials.launcher.close()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(ONE, id=ONE.name),
        pytest.param(OF_DEEPSPEED, id=OF_DEEPSPEED.name),
        *(pytest.param(case, id=case.name, marks=pytest.mark.walks) for case in covering_cases()),
    ],
)
def test_losses_are_equal_to_the_bit(trials: Trials, case: Case) -> None:
    warm, plain = trials.losses(case, None), trials.losses(case, False)
    steps = min(len(warm), len(plain))  # the end of warm-up depends on the clock
    assert steps >= RULES.min_steps
    assert warm[:steps] == plain[:steps]
