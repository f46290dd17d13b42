"""Check that ranks can be forked after their imports (trials/fork_server), by a process that imports what they do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import trials
from orchestrator.config.fork_servers import forked_engines
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.bounded_output import bounded_output
from orchestrator.diagnostics.doctor.finding import Finding, note, ok
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.launchers.local.rank_groups import program_environment
from slurm.environment import PYTHON_VARIABLES
from trials.fork_server.owner import CAN_FORK, CANNOT_FORK

_LIMIT_S = 120.0  # torch on a busy file system
_ON_CPU = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

Probe = Callable[[str, str], str | None]


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
