"""Check that the ranks' interpreter, script and program exist, as far as this machine can tell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.spec import SearchSpec, with_locations
from orchestrator.diagnostics.bounded_output import bounded_output
from search_spaces.decoding import parse_json
from search_spaces.engines import PARLAY
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.plain_file import open_named
from slurm.environment import PYTHON_VARIABLES
from trials.ranks.engine_packages import PACKAGED_ENGINES, PACKAGES, Installed, PackageFault, package_faults
from trials.trainers.command.trainer import program_of
from trials.trainers.common.megatron_options import newer_megatron_lm
from trials.trainers.megatron_lm.checkout import gradient_options
from trials.trainers.megatron_lm.trainer import NAME as MEGATRON_LM


def require_trainer(spec: SearchSpec) -> None:
    """InputError for an interpreter, a training script or a command's program that does not exist.

    Interpreter and program are checked only if ranks run on this machine, the script unless the search is simulated or
    a container has it.
    """
    problems = [*_missing_interpreter(spec), *_missing_script(spec), *_missing_program(spec)]
    if problems:
        raise with_locations(InputError(*problems), spec)


def require_software(spec: SearchSpec, trainings: Iterable[tuple[Layout, ModelShape]]) -> None:
    """InputError for an interpreter of ranks on this machine that is no Python or lacks torch for Parlay's own trainer,
    or a package, of a verified version, that an engine needs for one of these trainings.

    One that does not answer in time is left to the ranks; `parlay doctor` also imports torch.
    """
    if not spec.launcher.ranks_run_here:
        return
    needed, problems = list(trainings), []
    for key, python in _interpreters(spec):
        try:
            found = installed_for(python)
        except subprocess.TimeoutExpired:
            continue
        except (OSError, ValueError):
            rule = f"launcher {spec.launcher.kind} starts the ranks with it"
            problems.append(_interpreter_problem(key, python, "runs no Python program", rule, _NAME_ONE))
            continue
        if spec.trainer.kind == PARLAY and found[_TORCH_MODULE] is None:
            rule = f"launcher {spec.launcher.kind} trains on this machine, and Parlay's own trainer needs torch"
            fix = "pip install torch there (and deepspeed if layouts use it), or name a Python that has torch"
            problems.append(_interpreter_problem(key, python, "has no torch", rule, fix))
        problems += package_problems(python, found, spec.cluster.accelerator.name, needed, key)
    if problems:
        raise with_locations(InputError(*problems), spec)


def package_problems(
    python: str, installed: Installed, accelerator: str, trainings: Iterable[tuple[Layout, ModelShape]], key: str
) -> list[Problem]:
    """Faults of an interpreter, which `key` names, with these packages, for these trainings."""
    needing = [training for training in trainings if training[0].engine in PACKAGED_ENGINES]
    faults = (package_faults(layout, model, accelerator, installed) for layout, model in needing)
    return [_package_problem(fault, python, key) for fault in dict.fromkeys(chain.from_iterable(faults))]


def require_checkout(spec: SearchSpec, layouts: Iterable[Layout]) -> None:
    """InputError if one of these layouts depends on Megatron-LM's version, which the script's folder does not show."""
    script, depending = spec.trainer.script, next(filter(newer_megatron_lm, layouts), None)
    if script is None or depending is None or spec.trainer.kind != MEGATRON_LM or _has_own_files(spec):
        return
    try:
        gradient_options(depending, script, spec.trainer.arguments)
    except InputError as error:
        raise with_locations(error, spec) from error
    except OSError:  # the ranks may be able to read it
        return


def _has_own_files(spec: SearchSpec) -> bool:
    """True if ranks see other files than this machine: a container's, or none."""
    return spec.launcher.kind == "simulated" or bool(spec.launcher.slurm.container)


def _package_problem(fault: PackageFault, python: str, key: str) -> Problem:
    fix = f"{fault.fix}, for {python} or for another Python named as {key}"
    return Problem("package", f"{python}: {fault.message}", rule=fault.rule, fix=fix, key=key, value=python)


def python_of(spec: SearchSpec) -> str:
    """The ranks' interpreter: the one in the search file, the container image's, or the one that runs Parlay."""
    return spec.trainer.python or (PYTHON_OF_IMAGES if is_in_image(spec.launcher) else sys.executable)


def _interpreters(spec: SearchSpec) -> list[tuple[str, str]]:
    """Interpreters of the ranks, each with the key that names it; of an experiment without images both."""
    other = None if is_in_image(spec.launcher) else spec.search.against
    return [("trainer.python", python_of(spec)), *([] if other is None else [("search.against", other)])]


PYTHON_OF_IMAGES = "python3"


def is_in_image(launcher: LauncherSection) -> bool:
    """True if ranks run in a container image, whose files this machine cannot check."""
    container = launcher.slurm.container if launcher.uses_slurm else None
    return container is not None and container.runtime is not None


_NAME_ONE = "name a Python on this machine that has torch"


def _interpreter_problem(key: str, python: str, fault: str, rule: str, fix: str) -> Problem:
    return Problem("interpreter", f"{python} {fault}", rule=rule, fix=fix, key=key, value=python)


def _missing_interpreter(spec: SearchSpec) -> Iterator[Problem]:
    for key, python in _interpreters(spec):
        if spec.launcher.ranks_run_here and shutil.which(python) is None:
            rule = f"launcher {spec.launcher.kind} starts the ranks on this machine"
            yield _interpreter_problem(key, python, "is not an executable on this machine", rule, _NAME_ONE)


def _missing_script(spec: SearchSpec) -> Iterator[Problem]:
    script = spec.trainer.script
    if script is not None and not _has_own_files(spec) and not Path(script).is_file():
        yield Problem(
            "script",
            f"{script} is not a file on this machine",
            rule="the training script is on a file system that this machine and the compute nodes share",
            fix="correct the path, which is relative to the search file's folder",
            key="trainer.script",
            value=script,
        )


def _missing_program(spec: SearchSpec) -> Iterator[Problem]:
    """A command starts in its attempt's folder, which is empty, so a relative path names nothing."""
    if not spec.trainer.is_command_line or not spec.launcher.ranks_run_here:
        return
    program = program_of(spec.trainer.command_template)
    if program is None:
        return
    found = shutil.which(program)
    if found is None or ("/" in program and not Path(program).is_absolute()):
        yield Problem(
            "script",
            f"{program} is not found from an attempt's folder",
            rule=f"launcher {spec.launcher.kind} starts the command's first word on this machine, in the attempt's"
            " folder",
            fix="begin with a program on PATH, with {python}, or with an absolute path",
            key="trainer.template",
            value=program,
        )
    elif fault := _interpreter_line_error(Path(found)):
        message, fix = fault
        rule = "a program is a binary, or a script whose first line names its interpreter"
        yield Problem("script", f"{found} {message}", rule=rule, fix=fix, key="trainer.template", value=program)


def _interpreter_line_error(program: Path) -> tuple[str, str] | None:
    """Error of an executable's first line and its fix; None if the line is fine or cannot be read."""
    try:
        with open_named(program) as stream:
            first = stream.read(256).partition(b"\n")[0]
    except OSError:
        return None
    if first.startswith(b"#!") and first.endswith(b"\r"):
        return "has Windows line ends, so its interpreter is not found", "save it with Unix line ends (dos2unix)"
    if not first.startswith(b"#!") and first.isascii() and first.decode("ascii").isprintable():
        return "is a script without an interpreter line", "begin it with #!/bin/sh, or begin the command with {python}"
    return None


def installed_for(python: str) -> Installed:
    """Versions of DeepSpeed and of `PACKAGES` installed for this Python, and whether it finds torch.

    Raises as `bounded_output`, ValueError also for another answer.
    """
    answer = parse_json(run_python(python, PACKAGES_PROGRAM, _ANSWERS_WITHIN_S))
    if not isinstance(answer, dict):
        raise ValueError("it answers with no object")
    return {name: answer.get(name) for name in _ASKED}


def run_python(python: str, program: str, timeout_s: float) -> str:
    """Return what a program prints with the ranks' Python on this machine, in the environment that ranks get.

    Raises as `bounded_output`.
    """
    environment = {name: value for name, value in os.environ.items() if name not in PYTHON_VARIABLES}
    return bounded_output([Path(shutil.which(python) or python).absolute(), "-c", program], environment, timeout_s)


_TORCH_MODULE = "torch module"
"""Whether torch is found: without metadata, as from a folder on the path, it has no version."""
_ASKED = ("deepspeed", _TORCH_MODULE, *PACKAGES)
PACKAGES_PROGRAM = f"""
import importlib.metadata, importlib.util, json
found = {{}}
for name in {_ASKED}:
    try:
        found[name] = importlib.metadata.version(name)
    except Exception:
        found[name] = None
found[{_TORCH_MODULE!r}] = "found" if importlib.util.find_spec("torch") else None
print(json.dumps(found))
"""
_ANSWERS_WITHIN_S = 30.0  # it imports nothing large
