"""Checks of the user's job options before they are written into a script. Pure.

Every value is matched against a pattern. A blank, a quote or a # inside a directive can silently drop the ones after
it, so nothing is escaped there: values that would need it are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from slurm.environment import RANK_NAMES
from slurm.hostlist import MAX_HOSTS, HostListError, expand
from slurm.request import Container, JobOptions, Launch, Runtime


@dataclass(frozen=True)
class OptionProblem:
    """A problem with one option: its key (`modules[1]`, `env.RANK`), its value, the rule and the fix."""

    key: str
    value: object
    rule: str
    fix: str


def option_problems(options: JobOptions) -> tuple[OptionProblem, ...]:
    """Return the problems for which these options must be refused, in the order of JobOptions."""
    return (
        *_declared_problems(options),
        *_gpu_problems(options),
        *_host_problems(options),
        *_name_problems("env", options.env),
        *_container_problems(options.container),
        *_launch_problems(options.launch),
        *_directive_problems(options.directives),
    )


def option_warnings(options: JobOptions) -> tuple[OptionProblem, ...]:
    """Return warnings on variables that change which programs and libraries the ranks find."""
    rule = "replaces what the modules and the setup file have set, and decides what every rank runs"
    fix = "extend it in setup_file instead, if the rest of it is still needed"
    return tuple(OptionProblem(f"env.{n}", options.env[n], rule, fix) for n in _RISKY_VARIABLES if n in options.env)


def requests_gpus(gres: str | None) -> bool:
    """True if these generic resources include GPUs."""
    return "gpu" in [entry.split(":")[0] for entry in (gres or "").split(",")]


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMMAND = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_SRUN_OPTION = re.compile(r"--([a-z][a-z-]*)(=[A-Za-z0-9_.,:=*/+-]{1,1024})?")

SRUN_KEYS = (
    *("cpu-bind", "mem-bind", "gpu-bind", "gpus-per-task", "accel-bind", "hint", "threads-per-core", "cpu-freq"),
    *("gpu-freq", "gres-flags", "network", "mpi", "unbuffered"),
)
"""Options of srun about binding and starting tasks; resources, placement and names are set elsewhere."""
_DIRECTIVE = re.compile(r"--([a-z][a-z0-9-]*)=([A-Za-z0-9_./,:=@%+&|*()\[\]~^-]{1,1024})")

_SCHEDULER_PREFIXES = ("SLURM", "SBATCH_", "SRUN_", "PMI")
_RISKY_VARIABLES = ("LD_PRELOAD", "PATH")

_OWN_KEYS = (
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "ntasks-per-core", "ntasks-per-socket", "ntasks-per-gpu"),
    *("time", "time-min", "no-requeue", "requeue", "output", "error", "open-mode", "array", "parsable", "wrap"),
    *("export", "export-file", "chdir", "dependency", "clusters", "wait", "test-only", "hold"),
)
"""Options that Parlay sets itself, or that would submit no job, several jobs, or a job of another cluster."""

_OTHERS_KEYS = ("uid", "gid", "get-user-env")
_OPTION_KEYS = tuple(
    field.name.replace("_", "-")
    for field in fields(JobOptions)
    if field.name not in ("modules", "env", "setup_file", "container", "launch", "directives")
)


def _declared_problems(options: Any, above: str = "") -> Iterator[OptionProblem]:
    """Problems with texts by their patterns, and with numbers by their bounds."""
    for option in fields(options):
        key, value, about = above + option.name, getattr(options, option.name), option.metadata
        if "pattern" in about:
            rule, fix = f"{key} is {about['rule']}", about.get("fix", "write it as sbatch takes it, without quotes")
            wrong = ((k, text) for k, text in _texts(key, value) if not re.fullmatch(about["pattern"], text))
            yield from (OptionProblem(where, text, rule, fix) for where, text in wrong)
        if "le" in about and value is not None and not about["ge"] <= value <= about["le"]:
            rule = f"{key} is a whole number from {about['ge']} to {about['le']}"
            yield OptionProblem(key, value, rule, "leave it out for the default")
        if is_dataclass(value):
            yield from _declared_problems(value, f"{key}.")


def _texts(key: str, value: object) -> list[tuple[str, str]]:
    """Texts of an option, each with its key: one, those of a list, or those of a mapping."""
    if isinstance(value, tuple):
        return [(f"{key}[{index}]", text) for index, text in enumerate(value)]
    if isinstance(value, Mapping):
        return [(f"{key}.{name}", text) for name, text in value.items()]
    return [(key, value)] if isinstance(value, str) else []


def _gpu_problems(options: JobOptions) -> Iterator[OptionProblem]:
    if options.gpus_per_node is not None and requests_gpus(options.gres):
        rule = f"GPUs are requested once: gpus_per_node is {options.gpus_per_node}, gres is {options.gres}"
        yield OptionProblem("gres", options.gres, rule, "leave out one of the two")


def _host_problems(options: JobOptions) -> Iterator[OptionProblem]:
    for key in ("exclude", "nodelist"):
        entries, total = getattr(options, key), 0
        for index, text in enumerate(entries):
            try:
                hosts = expand(text)
                total += len(hosts)
                fault = None if hosts else "it is empty"
            except HostListError as error:
                fault = str(error)
            if fault is not None:
                rule = f"{key} is a list of Slurm's host lists: {fault}"
                yield OptionProblem(f"{key}[{index}]", text, rule, "write it as sinfo does: n[001-004,007]")
        if total > MAX_HOSTS:
            yield OptionProblem(key, total, f"{key} names at most {MAX_HOSTS} hosts", "name fewer")


def _name_problems(above: str, names: Iterable[str]) -> Iterator[OptionProblem]:
    for name in names:
        if not _VARIABLE.fullmatch(name):
            rule = "a variable's name is letters, digits and _, and begins with no digit"
            yield OptionProblem(f"{above}.{name}", name, rule, "rename it")
        elif name in RANK_NAMES or name.startswith(_SCHEDULER_PREFIXES):
            rule = "SLURM_*, SBATCH_*, SRUN_*, PMI* and rank variables are set by Slurm and Parlay"
            yield OptionProblem(f"{above}.{name}", name, rule, "leave it out; options of sbatch have their own keys")


def _container_problems(container: Container | None) -> Iterator[OptionProblem]:
    if container is None:
        return
    if container.runtime is None:
        yield from _command_problems(container.command)
        return
    if container.image is None:
        yield OptionProblem("container.image", None, "a container has an image", "give it as the runtime takes it")
    if container.command:
        rule = "a container is a runtime with an image, or a command"
        yield OptionProblem("container.command", list(container.command), rule, "leave out one of the two")
    if container.writable and container.runtime is Runtime.SHIFTER:
        yield OptionProblem("container.writable", True, "Shifter's images are read-only", "leave it out")
    if container.gpus is not None and container.runtime is not Runtime.APPTAINER:
        rule = f"{container.runtime} binds the driver by itself; only apptainer takes nv or rocm"
        yield OptionProblem("container.gpus", container.gpus, rule, "leave it out")


def _command_problems(arguments: tuple[str, ...]) -> Iterator[OptionProblem]:
    for index, token in enumerate(arguments):
        if not token or _CONTROL.search(token):
            rule = "a container's command is a list of texts without control characters"
            yield OptionProblem(
                f"container[{index}]", token, rule, "one argument per entry: [apptainer, exec, --nv, x.sif]"
            )
    if arguments and not _COMMAND.fullmatch(arguments[0]):
        rule = "a container's command begins with a program: its name or path"
        yield OptionProblem("container[0]", arguments[0], rule, "begin with the program, for example apptainer")


def _launch_problems(launch: Launch) -> Iterator[OptionProblem]:
    for index, word in enumerate(launch.srun):
        match = _SRUN_OPTION.fullmatch(word)
        if match is None or match[1] not in SRUN_KEYS:
            rule = f"an option of srun is --key=value or --key, of: {', '.join(SRUN_KEYS)}"
            yield OptionProblem(f"launch.srun[{index}]", word, rule, "leave out what Parlay sets, or what has a key")
    yield from _name_problems("launch.node_folders", launch.node_folders)
    shown_by_srun = any(word.startswith(("--gpus-per-task", "--gpu-bind=closest")) for word in launch.srun)
    if launch.visible_devices is not None and shown_by_srun:
        rule = "a rank's GPU is set once: by this variable, or by srun's --gpus-per-task or --gpu-bind"
        yield OptionProblem("launch.visible_devices", launch.visible_devices, rule, "leave out one of the two")


def _directive_problems(directives: Iterable[str]) -> Iterator[OptionProblem]:
    for index, directive in enumerate(directives):
        where = f"directives[{index}]"
        match = _DIRECTIVE.fullmatch(directive)
        if match is None:
            rule = "a directive is --key=value, without blanks, quotes and $ ` ; # \\"
            yield OptionProblem(where, directive, rule, "write one long option of sbatch per entry")
            continue
        fault = _directive_fault(match[1])
        if fault is not None:
            yield OptionProblem(where, directive, *fault)


def _directive_fault(key: str) -> tuple[str, str] | None:
    """Return rule and fix for a key that may not be set this way. sbatch accepts any unique prefix of a key."""
    if any(other.startswith(key) for other in _OTHERS_KEYS):
        return "jobs run as the submitting user, in the environment that the script sets", "leave it out"
    if any(own.startswith(key) for own in _OWN_KEYS):
        return f"--{key} is set by Parlay", "leave it out"
    if key == "gpus":
        return "GPUs are requested per node; --gpus is the number for a whole job", "set gpus_per_node instead"
    option = next((option for option in _OPTION_KEYS if option.startswith(key)), None)
    if option is not None:
        return f"--{option} has its own key", f"set {option.replace('-', '_')} instead"
    return None
