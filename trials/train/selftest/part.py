"""One rank's part of one case, in its own process: the same Report and Watchdog as in a trial."""

from __future__ import annotations

import time
from dataclasses import asdict

from trials.diagnostics.selftest import Case, ExpectedResult, case_spec, trained_path
from trials.files.folders import AttemptFolder, write_json
from trials.measure_rules import MeasureRules
from trials.ranks.environment import RankEnvironment
from trials.ranks.report import Report
from trials.train.parallel.device import open_device
from trials.train.program import run_rank
from trials.train.selftest.training import STEPS, train_layout
from trials.trial import TrialSpec

MEMORY_LIMIT_GIB = 1.0
"""Far less than the model of the case `gpu_oom` needs (`trials.diagnostics.parity_cases.failing_cases`)."""

HANG_RULES = MeasureRules(min_steps=10_000, max_steps=10_000, ci_relative_width=1e-9, time_limit_s=40.0)
"""Rules under which only the watchdog ends the case, after half of the limit."""


def run_part(case: Case, job_spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> bool:
    """Run this rank's part; False where it failed, as a case that is meant to fail does."""
    if case.expected is ExpectedResult.AGREES:
        return run_rank(case_spec(case, job_spec.accelerator, job_spec.gpus_per_node), folder, env, _train)
    rules = HANG_RULES if case.expected is ExpectedResult.HANG else MeasureRules(memory_limit_gib=MEMORY_LIMIT_GIB)
    if case.expected is ExpectedResult.HANG and env.rank == env.world_size - 1:
        _hang_in_third_step()
    return run_rank(case_spec(case, job_spec.accelerator, job_spec.gpus_per_node, rules), folder, env)


def _train(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    device = open_device(spec, env.local_rank)
    report.enter("build")
    trained = train_layout(spec, folder, env, device, STEPS)
    write_json(trained_path(folder.path, env.rank), asdict(trained))


def _hang_in_third_step() -> None:
    """Hang as on a frozen node, so that the others wait for this rank in a collective."""
    from trials.train.engines.torch_engine import TorchEngine

    original, steps = TorchEngine.train_step, []

    def train_step(self, batch):
        steps.append(batch)
        while len(steps) == 3:
            time.sleep(3600)
        return original(self, batch)

    TorchEngine.train_step = train_step  # type: ignore[method-assign]
