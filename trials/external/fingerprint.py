"""Program, software and hardware that a third-party trainer was measured on. Standard library only."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from search_spaces.engines import ACCELERATE, MEGATRON_CORE
from search_spaces.plain_file import read_referenced
from trials.files.git_checkout import checkout_of
from trials.ranks.engine_packages import TRANSFORMER_ENGINE, TRANSFORMERS
from trials.ranks.environment import RankEnvironment
from trials.ranks.software import cpu_name, gpu_driver, gpu_name, package_version, speed_environment
from trials.trainers.megatron_lm.checkout import core_version
from trials.trainers.megatron_lm.trainer import NAME as MEGATRON_LM
from trials.trainers.registry import invocation
from trials.trial import TrialSpec


def fingerprint(spec: TrialSpec, env: RankEnvironment, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Fingerprint of the rank that reads the log, whose interpreter is the trainer's, with the trainer's environment;
    unknown fields are absent."""
    found = {
        **program(spec),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "deepspeed": package_version("deepspeed"),
        "megatron_core": _megatron_core(spec.trainer["script"]) if spec.trainer["kind"] == MEGATRON_LM else None,
        "transformer_engine": package_version(TRANSFORMER_ENGINE),
        **_accelerate(spec),
        "device": cpu_name() if spec.accelerator == "cpu" else gpu_name(env.local_rank),
        "gpu_driver": None if spec.accelerator == "cpu" else gpu_driver(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "executable": sys.executable,
        "environment": speed_environment(os.environ if environment is None else environment),
        "job_id": os.environ.get("SLURM_JOB_ID"),
    }
    return {name: value for name, value in found.items() if value is not None}


def program(spec: TrialSpec) -> dict[str, Any]:
    """The command, and what is known of the files that it runs."""
    command = invocation(spec, "{python}", "{attempt_folder}").command
    found: dict[str, Any] = {"command": shlex.join(command)}
    script = spec.trainer.get("script")
    files = dict(_named_scripts(command) if script is None else _readable([script]))
    if not files:
        return found
    found["scripts"] = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    with suppress(OSError):
        checkout = checkout_of(Path(next(reversed(files))).resolve().parent)
        if checkout is not None:
            found["script_commit"] = checkout.commit
            found["script_python_files"] = checkout.python_files
            found["script_modified"] = dict(checkout.modified)
    return found


def _named_scripts(command: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The program where it is a script, and the first of its arguments that is a text file."""
    program, *arguments = command
    yield from ((path, text) for path, text in _readable([shutil.which(program) or program]) if text[:2] == b"#!")
    yield from islice(((path, text) for path, text in _readable(arguments) if b"\0" not in text), 1)


def _readable(paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Content of the paths that are regular files; the trainer starts in an empty folder, so others name none."""
    for path in paths:
        if path.startswith("/"):
            with suppress(OSError):
                yield path, read_referenced(Path(path))


def _megatron_core(script: str) -> str | None:
    """Version that the script imports, that of its folder or else the installed one; None where it is not known."""
    with suppress(OSError):
        return core_version(script) or package_version(MEGATRON_CORE)
    return None


def _accelerate(spec: TrialSpec) -> dict[str, str | None]:
    """Versions that the script imports, or may import."""
    packages = (ACCELERATE, TRANSFORMERS) if spec.trainer["kind"] == ACCELERATE else ()
    return {name: package_version(name) for name in packages}
