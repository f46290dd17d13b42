"""Before anything is launched: whether what the ranks are to start is there, as far as this machine can tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.launchers.local.processes import PYTHON_VARIABLES
from orchestrator.launchers.schema import LauncherSection
from search_spaces.errors import InputError, Problem
from search_spaces.plain_file import open_named
from trials.trainers.command_template import program_of


def require_trainer(spec: SearchSpec) -> None:
    """InputError for an interpreter, a training script or a command's program that is not there.

    Interpreter and program are looked for only where ranks run on this machine, the script unless no rank is started or
    a container has it.
    """
    problems = [*_missing_interpreter(spec), *_missing_script(spec), *_missing_program(spec)]
    if problems:
        raise with_locations(InputError(*problems), spec)


def require_torch(spec: SearchSpec) -> None:
    """InputError where Parlay's own trainer would run on this machine without it: a plan can do without, no trial can.

    Whether it works there, `parlay doctor` says, which imports it.
    """
    python = python_of(spec)
    if spec.trainer.kind == "parlay" and ranks_run_here(spec) and not _has_torch(python):
        problem = Problem(
            "interpreter",
            f"{python} has no torch",
            rule=f"launcher {spec.launcher.kind} trains on this machine, and Parlay's own trainer needs torch",
            fix="pip install torch there (deepspeed, too, where layouts run on it), or name the Python whose torch the"
            " ranks shall use",
            key="trainer.python",
            value=python,
        )
        raise with_locations(InputError(problem), spec)


def python_of(spec: SearchSpec) -> str:
    """The interpreter of the ranks: the one the file names, the image's own, or the one that runs Parlay."""
    return spec.trainer.python or (PYTHON_OF_IMAGES if is_in_image(spec.launcher) else sys.executable)


PYTHON_OF_IMAGES = "python3"


def is_in_image(launcher: LauncherSection) -> bool:
    """Whether ranks run in a container, with what its image has and this machine need not have."""
    container = launcher.slurm.container if launcher.uses_slurm else None
    return container is not None and container.runtime is not None


def ranks_run_here(spec: SearchSpec) -> bool:
    """Whether the launcher starts plain processes of this machine, by itself or through a Ray of its own."""
    return spec.launcher.kind == "local" or (spec.launcher.kind == "ray" and spec.launcher.address is None)


def _missing_interpreter(spec: SearchSpec) -> Iterator[Problem]:
    python = python_of(spec)
    if ranks_run_here(spec) and shutil.which(python) is None:
        yield Problem(
            "interpreter",
            f"{python} is not an executable on this machine",
            rule=f"launcher {spec.launcher.kind} starts the ranks on this machine",
            fix="name the Python whose torch the ranks shall use",
            key="trainer.python",
            value=python,
        )


def _missing_script(spec: SearchSpec) -> Iterator[Problem]:
    script = spec.trainer.script
    has_its_own = spec.launcher.kind == "simulated" or bool(spec.launcher.slurm.container)
    if script is not None and not has_its_own and not Path(script).is_file():
        yield Problem(
            "script",
            f"{script} is not a file on this machine",
            rule="the training script lies where this machine and the compute nodes see it",
            fix="name it; a path starts from the search file's folder",
            key="trainer.script",
            value=script,
        )


def _missing_program(spec: SearchSpec) -> Iterator[Problem]:
    """A command is started in its attempt's folder, where there is nothing yet that a relative path could name."""
    if spec.trainer.kind != "command" or not ranks_run_here(spec):
        return
    program = program_of(spec.trainer.command_template)
    if program is None:
        return
    found = shutil.which(program)
    if found is None or ("/" in program and not Path(program).is_absolute()):
        yield Problem(
            "script",
            f"{program} is no program that an attempt's folder knows",
            rule=f"launcher {spec.launcher.kind} starts the command's first word on this machine, in the attempt's"
            " folder",
            fix="begin with a program of the PATH, with {python}, or with a program's whole path",
            key="trainer.template",
            value=program,
        )
    elif fault := _interpreter_line_error(Path(found)):
        message, fix = fault
        rule = "a program is a binary, or a script whose first line names its interpreter"
        yield Problem("script", f"{found} {message}", rule=rule, fix=fix, key="trainer.template", value=program)


def _interpreter_line_error(program: Path) -> tuple[str, str] | None:
    """What is wrong with an executable's first line, and what to do; None where nothing is, or nobody may look."""
    try:
        with open_named(program) as stream:
            first = stream.read(256).partition(b"\n")[0]
    except OSError:
        return None
    if first.startswith(b"#!") and first.endswith(b"\r"):
        return "has Windows line ends, so that its interpreter is not found", "save it with Unix line ends (dos2unix)"
    if not first.startswith(b"#!") and first.isascii() and first.decode("ascii").isprintable():
        return "is a script that names no interpreter", "begin it with #!/bin/sh, or begin the command with {python}"
    return None


def _has_torch(python: str) -> bool:
    """True as well of what is not known to have none: a Python that does not answer."""
    try:
        return run_python(python, _QUESTION, _ANSWERS_WITHIN_S).returncode != _NO_TORCH
    except (OSError, subprocess.TimeoutExpired):
        return True


def run_python(python: str, program: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """What a program says that the Python of ranks on this machine runs, with the environment that ranks have of ours.

    Raises OSError and subprocess.TimeoutExpired.
    """
    return subprocess.run(
        [Path(shutil.which(python) or python).absolute(), "-c", program],
        env={name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES},
        cwd="/",  # Python 3.10 would take modules from ours; it knows neither -P nor PYTHONSAFEPATH
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


_NO_TORCH = 71
_QUESTION = f"import importlib.util, sys; sys.exit({_NO_TORCH} if importlib.util.find_spec('torch') is None else 0)"
_ANSWERS_WITHIN_S = 30.0  # it imports nothing large
