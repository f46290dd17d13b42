"""Cases trained as trials of forked and of plain ranks, and the steps of both."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from search_spaces.layouts.covering_array import cover
from tests.orchestrator.launchers.attempts import result_of, wait_until_ended, written
from tests.trials.train.trial_processes import RULES, make_spec
from trials.diagnostics.parity_cases import axis_values, covering_cases
from trials.diagnostics.selftest import Case
from trials.files.folders import SearchFolder
from trials.measurement.step_log import read_metrics
from trials.trial import TrialState

_AXES = ("tensor_parallel", "zero_stage", "activation_checkpointing", "pipeline_schedule", "precision")
"""Axes that decide which modules a layout needs and which collectives its ranks meet in."""

Steps = Sequence[tuple[float | None, float | None]]
"""Loss and gradient norm of each step."""


@dataclass(frozen=True)
class Compared:
    """Steps of a case by forked ranks and by plain ones, as many as both have: the end of warm-up depends on the
    clock."""

    warm: Steps
    plain: Steps

    @property
    def is_equal(self) -> bool:
        return len(self.warm) >= RULES.min_steps and self.warm == self.plain


class Trials:
    """Launches a case as trials of both kinds; one launcher, so that servers live from case to case."""

    def __init__(self, root: Path):
        self._root = root
        self._count = 0
        self.launcher = LocalLauncher([[]])
        snapshot_code(root / "code")

    def compared(self, case: Case) -> Compared:
        warm, plain = self._steps(case, None), self._steps(case, False)
        both = min(len(warm), len(plain))
        return Compared(warm[:both], plain[:both])

    def _steps(self, case: Case, warm_start: bool | None) -> Steps:
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


def few_cases() -> list[Case]:
    """Cases of the parity array on up to four ranks that together have, under each engine, every value of the axes that
    matter to a start."""
    given = [case for case in covering_cases() if case.layout.num_gpus <= 4 and case.layout.tensor_parallel < 4]
    shown = [[(case.layout.engine, axis, axis_values(case)[axis]) for axis in _AXES] for case in given]
    return [given[index] for index in sorted(cover(shown, [case.layout.num_gpus for case in given]))]
