"""Checks of the user's job options before they are written into a script. Pure.

Every value is matched against a pattern. A blank, a quote or a # inside a directive can silently drop the ones after
it, so nothing is escaped there: values that would need it are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from slurm.environment import RANK_NAMES
from slurm.hostlist import MAX_HOSTS, HostListError, expand
from slurm.request import VISIBLE_DEVICES, Container, JobOptions, Launch, Runtime


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
        *_module_problems(options.modules),
        *_variable_problems(options),
        *_setup_file_problems(options.setup_file),
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


_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_.+-]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COMMAND = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")
_IMAGE = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:@#+-]{0,1023}")
_PATH = r"/[A-Za-z0-9_.@+=/-]{0,1023}"
_MOUNT = re.compile(rf"{_PATH}:{_PATH}(:r[ow])?")
_NODE_FOLDER = re.compile(_PATH)
_ADDRESS = re.compile(r"[A-Za-z0-9.-]*\{(host|fqdn|ip)\}[A-Za-z0-9.-]*")
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


def _declared_problems(options: JobOptions) -> Iterator[OptionProblem]:
    """Problems with texts by their patterns, and with numbers by their bounds."""
    for option in fields(options):
        key, value, about = option.name, getattr(options, option.name), option.metadata
        if "pattern" in about and isinstance(value, str) and not re.fullmatch(about["pattern"], value):
            yield OptionProblem(key, value, f"{key} is {about['rule']}", "write it as sbatch takes it, without quotes")
        if "le" in about and value is not None and not about["ge"] <= value <= about["le"]:
            rule = f"{key} is a whole number from {about['ge']} to {about['le']}"
            yield OptionProblem(key, value, rule, "leave it out for the default")


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


def _module_problems(modules: Iterable[str]) -> Iterator[OptionProblem]:
    for index, module in enumerate(modules):
        if not _MODULE.fullmatch(module):
            rule = "a module is name or name/version, of letters, digits and _ . + -"
            yield OptionProblem(
                f"modules[{index}]", module, rule, "one module per entry; anything else goes into setup_file"
            )


def _variable_problems(options: JobOptions) -> Iterator[OptionProblem]:
    for name, value in options.env.items():
        key = f"env.{name}"
        if not _VARIABLE.fullmatch(name):
            rule = "a variable's name is letters, digits and _, and begins with no digit"
            yield OptionProblem(key, name, rule, "rename it")
        elif name in RANK_NAMES or name.startswith(_SCHEDULER_PREFIXES):
            rule = "SLURM_*, SBATCH_*, SRUN_*, PMI* and rank variables are set by Slurm and Parlay"
            yield OptionProblem(key, value, rule, "leave it out; options of sbatch have their own keys")
        elif "\n" in value or "\0" in value:
            yield OptionProblem(key, value, "a variable's value is one line", "set it in setup_file")


def _setup_file_problems(setup_file: str | None) -> Iterator[OptionProblem]:
    if setup_file is not None and (not setup_file.startswith("/") or _CONTROL.search(setup_file)):
        rule = "setup_file is an absolute path: the job starts in its own directory"
        yield OptionProblem("setup_file", setup_file, rule, "give the whole path, as the compute nodes see it")


def _container_problems(container: Container | None) -> Iterator[OptionProblem]:
    if container is None:
        return
    if container.runtime is None:
        yield from _command_problems(container.command)
        return
    if container.image is None or not _IMAGE.fullmatch(container.image) or _has_a_dotted_part(container.image):
        rule = "an image is a path or a name: letters, digits and _ . / : @ # + -, without blanks and ' , '"
        yield OptionProblem("container.image", container.image, rule, "give it as the runtime takes it")
    for index, mount in enumerate(container.mounts):
        if not _MOUNT.fullmatch(mount) or any(_has_a_dotted_part(path) for path in mount.split(":")):
            rule = "a mount is SRC:DST or SRC:DST:ro, of absolute paths without blanks, colons, commas and .."
            yield OptionProblem(f"container.mounts[{index}]", mount, rule, "one mount per entry: /data:/data:ro")
    if container.command:
        rule = "a container is a runtime with an image, or a command"
        yield OptionProblem("container.command", list(container.command), rule, "leave out one of the two")
    if container.writable and container.runtime is Runtime.SHIFTER:
        yield OptionProblem("container.writable", True, "Shifter's images are read-only", "leave it out")
    if container.gpus is not None and container.runtime is not Runtime.APPTAINER:
        rule = f"{container.runtime} binds the driver by itself; only apptainer takes nv or rocm"
        yield OptionProblem("container.gpus", container.gpus, rule, "leave it out")


def _has_a_dotted_part(path: str) -> bool:
    return ".." in path.split("/")


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
    if launch.visible_devices is not None:
        yield from _visibility_problems(launch)
    for name, below in launch.node_folders.items():
        key = f"launch.node_folders.{name}"
        if not _VARIABLE.fullmatch(name) or name in RANK_NAMES or name.startswith(_SCHEDULER_PREFIXES):
            yield OptionProblem(key, name, "a variable of the user's own", "rename it, or leave it out")
        elif not _NODE_FOLDER.fullmatch(below) or _has_a_dotted_part(below):
            rule = "an absolute path without blanks and .., in which each node creates a folder"
            yield OptionProblem(key, below, rule, "/tmp, or the node's own disk")
    if launch.address is not None and not _ADDRESS.fullmatch(launch.address):
        rule = "{host} (short name), {fqdn} or {ip}, with letters, digits, . and - around it"
        yield OptionProblem("launch.address", launch.address, rule, 'for example "{host}i"')


def _visibility_problems(launch: Launch) -> Iterator[OptionProblem]:
    name = launch.visible_devices
    if name not in VISIBLE_DEVICES:
        yield OptionProblem("launch.visible_devices", name, f"one of {', '.join(VISIBLE_DEVICES)}", "write one of them")
    if any(word.startswith(("--gpus-per-task", "--gpu-bind=closest")) for word in launch.srun):
        rule = "a rank's GPU is set once: by this variable, or by srun's --gpus-per-task or --gpu-bind"
        yield OptionProblem("launch.visible_devices", name, rule, "leave out one of the two")


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
