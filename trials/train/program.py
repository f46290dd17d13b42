"""`python -m trials.train SPEC_PATH`: a rank of a trial or of a diagnostic job. Imports torch only after the checks.

Of a diagnostic job rank 0 writes what was found next to the spec; of a fabric check, in its outcome. Exit code 0 when
all was measured, 1 when this rank failed or was ended (the outcome has the reason), 2 for bad usage.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from search_spaces.errors import InputError, Problem
from search_spaces.rules.check import engine_violations
from trials.data.indexed_dataset import open_dataset
from trials.files.folders import AttemptFolder
from trials.ranks.engine_packages import require_packages
from trials.ranks.environment import RankEnvironment, prepare_process, process_age_s
from trials.ranks.failures import bound_of, data_failures, excerpt_of, reason_of
from trials.ranks.node_sampler import sample_node
from trials.ranks.program import exit_at_once, read_spec, require_world, run_program, wait_for_root_cause
from trials.ranks.report import Report
from trials.ranks.watchdog import Watchdog, hang_limit_s, silence_reason
from trials.trial import FailureReason, TrialSpec

DIAGNOSTICS = ("calibrate", "doctor", "fabric_check", "selftest")
"""Kinds of specs that measure or test the machines instead of a layout."""

_SHARDED_FIELDS = {
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "ffn": "ffn_hidden_size",
    "vocab": "vocab_size",
}
"""Model dimensions that tensor-parallel ranks split, by rule."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run this rank and exit the process."""
    run_program("trials.train", arguments, read_spec, run_rank, exit_at_once)


def run_rank(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment) -> bool:
    """Run this rank's part of what the spec says; False if it failed, with the reason in the attempt's outcome."""
    report = Report(spec, folder, env.rank, env.restart, started_at=time.time() - process_age_s())
    Watchdog(report, env, hang_limit_s(spec.measure), silence_reason(spec.measure)).start()
    try:
        require_runnable(spec, env)
        require_data(spec)
        env.export(os.environ)
        prepare_process(spec, os.environ)
        run = _run_diagnostic if spec.trainer["kind"] in DIAGNOSTICS else _run_trial
        run(spec, folder, env, report)
    except BaseException as error:
        _report_error(error, report)
        return False
    return True


def _run_trial(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    sample_node(spec, folder, env)
    from trials.train.trial_run import run_trial

    run_trial(spec, folder, env, report)


def _run_diagnostic(spec: TrialSpec, folder: AttemptFolder, env: RankEnvironment, report: Report) -> None:
    found = _diagnostic(spec.trainer["kind"])(spec, folder, env, report)
    if env.rank == 0 and spec.trainer["kind"] == "fabric_check":
        report.write(report.outcome(rank=0, fabric=found.to_json()))
    elif env.rank == 0:
        found.write(folder.path)


def _diagnostic(kind: str) -> Callable[[TrialSpec, AttemptFolder, RankEnvironment, Report], Any]:
    """The diagnostic of this kind: its result is the same on all ranks."""
    if kind == "doctor":
        from trials.train.diagnostics.node_probe import probe_nodes

        return probe_nodes
    if kind == "selftest":
        from trials.train.selftest.program import run_cases

        return run_cases
    from trials.train.diagnostics.benchmarks import check_fabric, measure

    return measure if kind == "calibrate" else check_fabric


def require_runnable(spec: TrialSpec, env: RankEnvironment) -> None:
    """Check before anything is waited for: InputError for a layout that cannot run, TrialFailure for a different world
    size, or where a package of its engine is missing or of an unverified version."""
    layout = spec.layout.canonical()
    problems = [*engine_violations(layout, spec.model), *_uneven_shards(spec)]
    if layout.num_gpus != spec.num_gpus:
        problems.append(Problem("world", f"the layout has {layout.num_gpus} ranks, the spec {spec.num_gpus}"))
    if layout.global_batch_size != spec.global_batch_size:
        found = f"the layout's global batch is {layout.global_batch_size}, the spec's {spec.global_batch_size}"
        problems.append(Problem("batch", found))
    if problems:
        raise InputError(*problems)
    require_world(spec, env)
    require_packages(spec)


def require_data(spec: TrialSpec) -> None:
    """TrialFailure where the dataset is missing, too short, or of another length than when the search began."""
    if spec.reads_tokens:
        with data_failures():
            open_dataset(spec.trainer["data"], spec.model)


def _uneven_shards(spec: TrialSpec) -> Iterator[Problem]:
    """Dimensions of the model that the tensor-parallel ranks cannot split evenly."""
    size = spec.layout.tensor_parallel
    for rule, field in _SHARDED_FIELDS.items():
        value = getattr(spec.model, field)
        if value % size:
            yield Problem(rule, f"{field} {value} is not a multiple of tensor_parallel {size}")


def _report_error(error: BaseException, report: Report) -> None:
    """Print the traceback and write the outcome, after a grace period if the cause seems to be in another rank."""
    reason, excerpt = reason_of(error, report.folder.path), excerpt_of(error)
    if reason is FailureReason.GPU_OOM:
        _lift_memory_limit()
    print(excerpt, file=sys.stderr, flush=True)
    wait_for_root_cause(error, report)
    report.fail(reason, excerpt, bound_of(error))


def _lift_memory_limit() -> None:
    from trials.train.parallel.device import lift_memory_limit

    lift_memory_limit()
