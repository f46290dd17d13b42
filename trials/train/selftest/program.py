"""Selftest's part of a rank: layout after layout in one process, each compared with a plain GPT.

A case that differs goes on record and the next one follows. One that ends a rank ends its attempt, as in any trial, and
the driver starts another for the cases after it. Imports torch only after the settings of the first case's engine.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from search_spaces.model_shape import ModelShape
from trials.diagnostics.selftest import (
    HANG_LIMIT_S,
    Case,
    ExpectedResult,
    RankTraining,
    ReferenceTraining,
    Results,
    case_spec,
    cases_of,
    judge_case,
)
from trials.files.folders import AttemptFolder
from trials.measure_rules import MeasureRules
from trials.ranks.engine_packages import PACKAGED_ENGINES
from trials.ranks.environment import RankEnvironment, prepare_process
from trials.ranks.report import Report
from trials.ranks.watchdog import Watchdog
from trials.trial import TrialSpec

if TYPE_CHECKING:
    from trials.train.parallel.device import Device

MEMORY_LIMIT_GIB = 1.0
"""Far less than the model of the case `gpu_oom` needs (`trials.diagnostics.parity_cases.failing_cases`)."""

_ENDLESS = MeasureRules(min_steps=10_000, max_steps=10_000, ci_relative_width=1e-9, time_limit_s=3600.0)
"""Rules under which only the watchdog ends the case `hang`."""


def run_cases(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> Results:
    """Run the cases of this spec, which need the same settings of a process.

    Returns their results on rank 0, which also writes them after each case.
    """
    cases = cases_of(spec.trainer)
    prepare_process(_spec_of(cases[0], spec), os.environ)
    from trials.train.parallel.device import open_device

    device = open_device(spec, env.local_rank)
    judge = _Judge(folder, device)
    for number, case in enumerate(cases):
        place = AttemptFolder(folder.path / "cases" / f"{number:03d}")
        place.path.mkdir(parents=True, exist_ok=True)
        report.enter(case.name)
        if case.expected is ExpectedResult.AGREES:
            _compare(case, _spec_of(case, spec), place, env, device, judge)
        else:
            _fail(case, spec, folder, env, report)
    return judge.results


def _spec_of(case: Case, spec: TrialSpec, measure: MeasureRules | None = None) -> TrialSpec:
    return case_spec(case, spec.accelerator, spec.gpus_per_node, measure)


class _Judge:
    """Rank 0's comparisons, with the plain GPT's training of each model and precision, once."""

    def __init__(self, folder: AttemptFolder, device: Device):
        self.results = Results()
        self._folder = folder
        self._device = device
        self._references: dict[tuple[ModelShape, str], ReferenceTraining] = {}

    def compare(self, case: Case, spec: TrialSpec, trained: Sequence[RankTraining], began: float) -> None:
        """Add and write the result of a case that began then."""
        result = judge_case(case, spec.accelerator, trained, self._reference(case), time.monotonic() - began)
        known = self.results.fingerprint or _fingerprint(spec, self._device)
        self.results = Results((*self.results.results, result), known)
        self.results.write(self._folder.path)

    def _reference(self, case: Case) -> ReferenceTraining:
        from trials.train.selftest.training import train_reference

        key = case.model, case.layout.precision
        if key not in self._references:
            self._references[key] = train_reference(case, self._device)
        return self._references[key]


def _compare(
    case: Case, spec: TrialSpec, place: AttemptFolder, env: RankEnvironment, device: Device, judge: _Judge
) -> None:
    """Train the case on all ranks. They go on once rank 0 has written its result: it would be lost with a rank that the
    next case ends."""
    from trials.train.parallel.gather import barrier, gather_alike
    from trials.train.selftest.training import STEPS, train_layout

    began = time.monotonic()
    trained = gather_alike(train_layout(spec, place, env, device, STEPS), device.torch_device)
    if env.rank == 0:
        judge.compare(case, spec, trained, began)
    device.synchronize()
    barrier(device.torch_device)
    device.synchronize()
    _leave_world()


def _leave_world() -> None:
    """Give up all groups of ranks, and what engines keep of them, so that this process may join another world."""
    import torch.distributed as dist

    if (megatron := sys.modules.get("megatron.core.parallel_state")) is not None:
        megatron.destroy_model_parallel()
    if (deepspeed := sys.modules.get("deepspeed.comm.comm")) is not None:
        deepspeed.cdb = None  # type: ignore[attr-defined]
    gc.collect()  # engines hold their groups in cycles
    dist.destroy_process_group()


def _fail(case: Case, spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    """Run a case as a trial that must fail: where this returns, it did not."""
    from trials.train.trial_run import run_trial

    rules = MeasureRules(memory_limit_gib=MEMORY_LIMIT_GIB)
    if case.expected is ExpectedResult.HANG:
        rules = _ENDLESS
        Watchdog(report, env, HANG_LIMIT_S).start()
        if env.rank == env.world_size - 1:
            from trials.train.selftest.training import hang_in_third_step

            hang_in_third_step()
    run_trial(_spec_of(case, spec, rules), folder, env, report)


def _fingerprint(spec: TrialSpec, device: Device) -> dict[str, Any]:
    """Fingerprint of this rank's node, with the versions of the spec's engine."""
    from trials.train.parallel.gather import RankHost
    from trials.train.proof.fingerprint import engine_software, fingerprint

    engine = spec.layout.engine
    software = engine_software(engine, ()) if engine in PACKAGED_ENGINES else {}
    return fingerprint(spec, device, [RankHost(socket.gethostname(), None)], software)
