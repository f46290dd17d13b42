"""`python -m trials.train.selftest SPEC_PATH`: all cases in one world of ranks, each in processes of its own.

Every rank is a supervisor that imports torch and most engines once and then forks for each case it takes part in, so
that a case that hangs, dies or leaks affects only itself. It never touches a device, so that its children may. Ranks
synchronise by files in the shared folder: `cases/000/ended-00003.json` has the exit of a rank's part, and
`cases/000/result.json`, by rank 0, lets all continue.

Exit code 0 when all cases were run, whatever their results, 1 when a rank was lost, 2 for bad usage.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from search_spaces.decoding import decode, encode
from search_spaces.engines import MEGATRON_CORE, TORCHTITAN
from search_spaces.model_shape import ModelShape
from trials.diagnostics.selftest import (
    CASE_LIMIT_S,
    Case,
    CaseResult,
    ExpectedResult,
    RankTraining,
    ReferenceTraining,
    Results,
    read_cases,
    trained_path,
)
from trials.files.folders import AttemptFolder, read_json, write_json
from trials.ranks.engine_packages import PACKAGED_ENGINES
from trials.ranks.environment import RankEnvironment, prepare_process
from trials.ranks.program import exit_at_once
from trials.train.selftest.judge import judge_agreement, judge_failure
from trials.trial import TrialSpec

POLL_INTERVAL_S = 0.02
MAX_VISIBILITY_DELAY_S = 60.0
"""Longest delay until a file of another rank is visible on a network file system."""


def main(arguments: Sequence[str]) -> NoReturn:
    """Run this rank's part of all cases."""
    if len(arguments) != 1:
        print("usage: python -m trials.train.selftest SPEC_PATH", file=sys.stderr)
        exit_at_once(2)
    path = Path(arguments[0])
    try:
        spec, env = TrialSpec.from_json(read_json(path) or {}), RankEnvironment.read(os.environ)
        cases = read_cases(path.parent)
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        exit_at_once(2)
    try:
        engines = {"deepspeed", *(case.layout.engine for case in cases)}
        for engine in engines:
            prepare_process(replace(spec, layout=replace(spec.layout, engine=engine)), os.environ)
        _import_engines(importable_before_forks(engines, spec.accelerator), spec.accelerator == "cpu")
        if spec.accelerator != "cpu":
            require_untouched_devices()
        exit_at_once(0 if Supervisor(spec, path.parent, env).run(cases) else 1)
    except BaseException:
        traceback.print_exc()
        exit_at_once(1)


def importable_before_forks(engines: Set[str], accelerator: str) -> Set[str]:
    """Engines that the supervisor imports; the children import the others.

    With megatron-core on a GPU comes Transformer Engine, which asks CUDA for the device while it is imported where
    flash-attn is installed (transformer_engine/pytorch/attention/dot_product_attention/backends.py). torchtitan is
    imported after its patches on a CPU, which change torch for the other engines.
    """
    return engines - {TORCHTITAN} if accelerator == "cpu" else engines - {MEGATRON_CORE, TORCHTITAN}


def _import_engines(engines: Set[str], on_cpu: bool) -> None:
    """Import the engines once for all cases, torch in any case. A missing one is reported by the cases that need it."""
    # Without these, DeepSpeed queries CUDA for devices, after which no forked child can use CUDA. The NVML check alone
    # is not enough: where it fails, the count falls back on CUDA, which the named accelerator avoids.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("DS_ACCELERATOR", "cuda")
    import trials.train.engines.fsdp
    import trials.train.engines.torch_pipeline
    import trials.train.selftest.training  # noqa: F401
    from trials.train.engines.factory import engine_builder

    for engine in {"torch", *engines}:
        with suppress(ImportError):
            engine_builder(engine, on_cpu)


def require_untouched_devices() -> None:
    """RuntimeError where CUDA was already used in this process, after which no child can."""
    import torch

    # Counting devices by CUDA also breaks forked children, which only a child can detect.
    if torch.cuda.is_initialized() or _run_child(lambda: not torch.cuda._is_in_bad_fork(), CASE_LIMIT_S) != 0:
        raise RuntimeError(
            "CUDA was used while torch and the engines were imported, so that no process forked from this one can: "
            "keep sitecustomize, .pth files and modules of this Python from using a GPU at import"
        )


@dataclass(frozen=True)
class PartExit:
    """Exit of one rank's part of a case: its exit code, negative for a signal; None when it had to be killed."""

    code: int | None
    host: str


class Supervisor:
    """One rank of the world, through all cases."""

    def __init__(self, spec: TrialSpec, folder: Path, env: RankEnvironment):
        self._spec = spec
        self._folder = folder
        self._env = env
        self._results = Results()
        self._references: dict[tuple[ModelShape, str], ReferenceTraining] = {}

    def run(self, cases: Sequence[Case]) -> bool:
        """Run all cases; False where a rank was lost. Rank 0 keeps results.json up to date."""
        if self._env.rank == 0:
            engines = {case.layout.engine for case in cases}
            found = self._ask_child(lambda spec: _fingerprint(spec, engines), "fingerprint.json")
            self._results = Results(fingerprint=found)
            self._results.write(self._folder)
        return all(self._run_case(number, case) for number, case in enumerate(cases))

    def _run_case(self, number: int, case: Case) -> bool:
        """Run one case; False where a rank was lost."""
        folder = self._folder / "cases" / f"{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        began, code = time.monotonic(), None
        if self._env.rank < case.layout.num_gpus:
            code = _run_child(lambda: self._part(case, folder), CASE_LIMIT_S)
            write_json(folder / _exit_file_name(self._env.rank), {"code": code, "host": socket.gethostname()})
        if self._env.rank > 0:
            return _wait_for_files(folder, ["result.json"], CASE_LIMIT_S + 3 * MAX_VISIBILITY_DELAY_S)
        all_ended = _wait_for_files(
            folder, [_exit_file_name(rank) for rank in range(case.layout.num_gpus)], MAX_VISIBILITY_DELAY_S
        )
        result = self._judge(case, folder, time.monotonic() - began)
        self._results = replace(self._results, results=(*self._results.results, result))
        self._results.write(self._folder)
        write_json(folder / "result.json", encode(result))
        return all_ended

    def _part(self, case: Case, folder: Path) -> bool:
        """Run this rank's part of the case in the child; True for success."""
        from trials.train.selftest.training import run_part

        env = replace(self._env, world_size=case.layout.num_gpus, parent_pid=os.getppid())
        return run_part(case, self._spec, AttemptFolder(folder), env)

    def _judge(self, case: Case, folder: Path, seconds: float) -> CaseResult:
        ended = [_read_exit(folder, rank) for rank in range(case.layout.num_gpus)]
        outcome = read_json(AttemptFolder(folder).outcome())
        if case.expected is not ExpectedResult.AGREES:
            return judge_failure(case, [e.code if e else None for e in ended], outcome, seconds)
        trained = [read_json(trained_path(folder, rank)) for rank in range(case.layout.num_gpus)]
        found = [decode(RankTraining, data) for data in trained if data is not None]
        reference = self._reference(case) if len(found) == case.layout.num_gpus else None
        return judge_agreement(case, self._spec.accelerator, found, reference, outcome, seconds)

    def _reference(self, case: Case) -> ReferenceTraining:
        key = case.model, case.layout.precision
        if key not in self._references:
            name = f"reference-{len(self._references):03d}.json"
            answer = self._ask_child(lambda spec: _reference(case, spec), name)
            self._references[key] = decode(ReferenceTraining, answer)
        return self._references[key]

    def _ask_child(self, ask: Callable[[TrialSpec], Mapping[str, Any]], name: str) -> dict[str, Any]:
        """Result of `ask` in a child, which may use the device."""
        path = self._folder / name

        def answer() -> bool:
            write_json(path, ask(self._spec))
            return True

        code = _run_child(answer, CASE_LIMIT_S)
        data = read_json(path)
        if code != 0 or data is None:
            raise RuntimeError(f"{name} was not written (exit code {code}); its traceback is above")
        return data


def _exit_file_name(rank: int) -> str:
    return f"ended-{rank:05d}.json"


def _read_exit(folder: Path, rank: int) -> PartExit | None:
    data = read_json(folder / _exit_file_name(rank))
    return None if data is None else PartExit(**data)


def _wait_for_files(folder: Path, names: Sequence[str], limit_s: float) -> bool:
    """Wait for files of these names; False after `limit_s`. Listing the folder makes a network file system ask its
    server."""
    deadline = time.monotonic() + limit_s
    while not set(names) <= set(os.listdir(folder)):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _run_child(work: Callable[[], bool], limit_s: float) -> int | None:
    """Exit code of a forked child that runs `work` (0 for success); None when it had to be killed."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _work_and_exit(work)
    deadline = time.monotonic() + limit_s
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(POLL_INTERVAL_S)


def _work_and_exit(work: Callable[[], bool]) -> NoReturn:
    try:
        exit_at_once(0 if work() else 1)
    except BaseException:
        traceback.print_exc()
        exit_at_once(1)


def _fingerprint(spec: TrialSpec, engines: Set[str]) -> dict[str, Any]:
    """Fingerprint of rank 0's node, with the versions of these engines."""
    from trials.train.parallel.device import open_device
    from trials.train.parallel.gather import RankHost
    from trials.train.proof.fingerprint import fingerprint

    wanting = replace(spec, layout=replace(spec.layout, engine="deepspeed" if "deepspeed" in engines else "torch"))
    hosts = [RankHost(socket.gethostname(), None)]
    return fingerprint(wanting, open_device(spec, 0), hosts, packaged_software(engines))


def packaged_software(engines: Set[str]) -> dict[str, str | None]:
    """Versions of those of these engines that are packages, without one that is missing."""
    from trials.train.proof.fingerprint import engine_software

    found: dict[str, str | None] = {}
    for engine in engines & set(PACKAGED_ENGINES):
        with suppress(ImportError):
            found |= engine_software(engine, ())
    return found


def _reference(case: Case, spec: TrialSpec) -> dict[str, Any]:
    from trials.train.parallel.device import open_device
    from trials.train.selftest.training import train_reference

    return asdict(train_reference(case, open_device(spec, 0)))
