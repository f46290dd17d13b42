"""Checks of the ranks' software: Python, torch, GPUs, the last selftest, and forks after the imports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

import trials
from orchestrator.config.fork_servers import forked_engines
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.bounded_output import bounded_output
from orchestrator.diagnostics.doctor.engine_packages import engines_of_search, package_findings
from orchestrator.diagnostics.doctor.finding import Finding, error, note, ok, warning
from orchestrator.diagnostics.preflight.trainer import installed_for, python_of, run_python
from orchestrator.launchers.local.rank_groups import program_environment
from search_spaces.decoding import parse_json
from search_spaces.engines import PARLAY
from slurm.environment import PYTHON_VARIABLES
from trials.files.folders import read_json
from trials.fork_server.owner import CAN_FORK, CANNOT_FORK
from trials.ranks.engine_packages import Installed

MIN_PYTHON, MIN_TORCH = "3.10", "2.6"

_PROBE_PROGRAM = """
import json, platform
found = {"python": platform.python_version(), "torch": None, "gpus": []}
try:
    import torch
    found["torch"] = torch.__version__
    found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
except Exception as error:
    found["torch_error"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""
_LIMIT_S = 120.0  # torch on a busy file system
_ON_CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
Probe = Callable[[str, str], str | None]


@dataclass(frozen=True)
class InterpreterInfo:
    """Versions reported by an interpreter; None if absent. `torch_error` is the reason why torch cannot be imported.
    `packages` are those of the engines of others.
    """

    python: str
    torch: str | None = None
    deepspeed: str | None = None
    gpus: tuple[str, ...] = ()
    torch_error: str | None = None
    packages: Installed = field(default_factory=dict)


def check_ranks(spec: SearchSpec, home: Path, submits: bool) -> Iterator[Finding]:
    """Check the software of ranks on this machine. On other nodes only a job can; `submits` says that one will
    follow."""
    torch = None
    if spec.launcher.ranks_run_here:
        software = probe_interpreter(python_of(spec))
        if isinstance(software, Finding):
            yield software
        else:
            torch = software.torch
            yield from interpreter_findings(software, spec)
            if torch is not None:
                yield from check_warm_start(spec)
    elif submits:
        return
    else:
        words = f"{python_of(spec)} and its torch on the nodes can only be checked by a job"
        yield note("ranks_python", words, "parlay doctor SEARCH.YAML --submit-test")
    yield from selftest_findings(spec, home, torch)


def selftest_findings(spec: SearchSpec, home: Path, torch: str | None) -> Iterator[Finding]:
    """Finding for the last selftest on this kind of machine; `torch` is the ranks' version, None if unknown."""
    if spec.trainer.kind != PARLAY:
        return
    try:
        tests = (read_json(home / "selftest.json") or {}).get("selftests", {})
        yield selftest_finding(spec.cluster.accelerator.name, tests, torch)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        words = f"{home / 'selftest.json'} is damaged: {error!r}"
        yield warning("selftest", words, "remove it; parlay selftest SEARCH.YAML writes it anew")


def probe_interpreter(python: str) -> InterpreterInfo | Finding:
    """Return the interpreter's versions, or an error."""
    fix = "set trainer.python to the Python whose torch the ranks should use"
    if shutil.which(python) is None:
        return error("ranks_python", f"{python} is not an executable on this machine", fix)
    try:
        answer = _answer_in(run_python(python, _PROBE_PROGRAM, _LIMIT_S))
        installed = dict(installed_for(python))
    except subprocess.TimeoutExpired:
        words = f"{python} did not import torch within {_LIMIT_S:.0f} s"
        return error("ranks_python", words, "check that its file system responds")
    except (OSError, ValueError, IndexError) as failed:
        return error("ranks_python", f"{python} does not run a Python program: {failed}", fix)
    return InterpreterInfo(
        **answer | {"gpus": tuple(answer["gpus"])}, deepspeed=installed.pop("deepspeed", None), packages=installed
    )


def _answer_in(printed: str) -> dict[str, Any]:
    """Answer of the probe's program; ValueError or IndexError without one."""
    answer = parse_json(printed.strip().splitlines()[-1])
    missing = [name for name in ("python", "torch", "gpus") if not isinstance(answer, dict) or name not in answer]
    if missing:
        raise ValueError(f"it answers without {', '.join(missing)}")
    return answer


def interpreter_findings(found: InterpreterInfo, spec: SearchSpec) -> Iterator[Finding]:
    """Check that the search's trials can run with this interpreter."""
    python = python_of(spec)
    if Version(found.python) < Version(MIN_PYTHON):
        words = f"{python} is Python {found.python}, ranks need {MIN_PYTHON}"
        yield error("ranks_python", words, "name a newer one as trainer.python")
        return
    if spec.trainer.kind != PARLAY:
        yield ok("ranks_python", f"{python}: Python {found.python}, which supervises {spec.trainer.kind}")
    else:
        yield from _torch_findings(found, python, spec)
    yield from package_findings(found.packages, python, spec)
    if spec.trainer.kind == PARLAY:
        yield from _gpu_findings(found, spec)


def selftest_finding(accelerator: str, tests: Mapping[str, Any], torch: str | None) -> Finding:
    """Compare the last selftest with the current setup.

    `tests` are the entries of selftest.json in Parlay's home, `torch` the ranks' version, None if unknown.
    """
    last, fix = tests.get(accelerator), "parlay selftest SEARCH.YAML"
    if last is None:
        words = f"no selftest has run on {accelerator} from here"
        if accelerator == "cpu":
            return note("selftest", words, fix)
        return warning("selftest", f"{words}: training over several GPUs is unverified", fix)
    when, tested = f"on {last['at'][:10]}", last["fingerprint"].get("torch")
    if not last["passed"]:
        failed = ", ".join(last["failed"])
        return warning("selftest", f"the last one on {accelerator}, {when}, failed: {failed}", fix)
    if torch is not None and tested is not None and torch != tested:
        return warning(
            "selftest", f"it passed on {accelerator} {when} with torch {tested}, ranks have torch {torch} now", fix
        )
    return ok("selftest", f"passed on {accelerator} {when} with torch {tested or 'of an unknown version'}")


def _torch_findings(found: InterpreterInfo, python: str, spec: SearchSpec) -> Iterator[Finding]:
    fix = _install_for(python)
    if found.torch is None:
        yield error("torch", f"{python} has no torch: {found.torch_error}", fix)
    elif old := old_torch_finding(found.torch, python):
        yield old
    else:
        yield ok("torch", f"{python}: Python {found.python}, torch {found.torch}")
    if "deepspeed" in engines_of_search(spec) and found.deepspeed is None:
        yield error(
            "deepspeed", f"{python} has no deepspeed, and the search tries it", f"{fix}; or space.engine: torch"
        )


def old_torch_finding(torch: str, python: str) -> Finding | None:
    """Error if torch is too old for Parlay's trainer, else None."""
    if Version(torch.partition("+")[0]) >= Version(MIN_TORCH):
        return None
    words = f"{python} has torch {torch}, the minimum is {MIN_TORCH}"
    return error("torch", words, _install_for(python))


def _install_for(python: str) -> str:
    return f"install it for {python}, or name another Python as trainer.python"


def _gpu_findings(found: InterpreterInfo, spec: SearchSpec) -> Iterator[Finding]:
    cluster = spec.cluster
    if cluster.accelerator.name == "cpu":
        return
    if len(found.gpus) < cluster.gpus_per_node:
        words = f"torch sees {len(found.gpus)} GPUs on this machine, cluster.gpus_per_node is {cluster.gpus_per_node}"
        fix = "see nvidia-smi and CUDA_VISIBLE_DEVICES, and that torch was built for this driver; or --launcher slurm"
        yield error("gpus", words, fix)
    else:
        yield ok("gpus", f"torch sees {len(found.gpus)} x {found.gpus[0]}")


def check_warm_start(spec: SearchSpec) -> Iterator[Finding]:
    """Check each engine of a search whose ranks would be forked on this machine."""
    yield from warm_start_findings(spec, probe_preload)


def warm_start_findings(spec: SearchSpec, probe: Probe) -> Iterator[Finding]:
    """Findings on each engine; `probe` gives the reason why its ranks cannot be forked, None where they can."""
    device = "cpu" if spec.cluster.accelerator.name == "cpu" else "gpu"
    for engine in forked_engines(spec):
        refused = probe(python_of(spec), f"{engine}/{device}")
        if refused is None:
            yield ok("warm_start", f"ranks of engine {engine} can be forked after their imports")
        else:
            words = f"ranks of engine {engine} are started plain, each with its own imports: {refused}"
            yield note("warm_start", words, "nothing; measure.warm_start: false does not try")


def probe_preload(python: str, preload: str) -> str | None:
    """The reason why a process of this interpreter cannot be forked after the imports of `preload`; None if it can."""
    inherited = {name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES}
    code = program_environment(str(Path(trials.__file__).parents[1]))
    environment = inherited | code | (_ON_CPU if preload.endswith("/cpu") else {})
    command = [python, "-m", "trials.fork_server", preload]
    try:
        last = next(reversed(bounded_output(command, environment, _LIMIT_S).splitlines()), "it printed nothing")
    except subprocess.TimeoutExpired:
        return f"the imports took more than {_LIMIT_S:.0f} s"
    except (OSError, ValueError) as failed:
        return f"the check did not end: {failed!r:.200}"
    return None if last == CAN_FORK else last.removeprefix(CANNOT_FORK)
