"""Commands of a launch script that a Slurm job's section keeps: modules, container, srun's options, variables. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from orchestrator.importers.slurm_directives import GivenOptions, read_options
from orchestrator.importers.slurm_options import SRUN_LETTERS, SRUN_OPTIONS
from search_spaces.schema.unsafe_text import is_printable, looks_secret
from slurm.environment import RANK_NAMES
from slurm.option_checks import SRUN_KEYS


@dataclass
class LaunchLines:
    """Keys of launcher.slurm from commands and exports; `step` are the options of the srun that starts the ranks, if
    one does (`has_step`)."""

    keys: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    step: GivenOptions = field(default_factory=GivenOptions)
    has_step: bool = False


def read_launch_lines(commands: Iterable[tuple[int, Sequence[str]]], exported: Mapping[str, str]) -> LaunchLines:
    """Read the commands, given as (line, words), and the exported variables."""
    found, numbered = LaunchLines(), [(line, list(words)) for line, words in commands if words]
    _modules(found, numbered)
    _setup_note(found, numbered)
    _step(found, numbered)
    _container(found, numbered)
    _variables(found, exported)
    return found


def _modules(found: LaunchLines, commands: Sequence[tuple[int, list[str]]]) -> None:
    loaded: dict[str, int] = {}
    for line, words in commands:
        if words[0] in ("module", "ml"):
            action, names = _module_action(words)
            if action == "use":
                found.notes.append(f"module use (line {line}) was left out: put it into launcher.slurm.setup_file.")
            _apply(loaded, action, names, line)
    if loaded:
        found.keys["modules"] = list(loaded)
        lines = ", ".join(str(line) for line in dict.fromkeys(loaded.values()))
        found.origins["modules"] = f"module load (line {lines})"


_MODULE_ACTIONS = {
    "load": "load",
    "add": "load",
    "try-load": "load",
    "unload": "unload",
    "rm": "unload",
    "del": "unload",
    "swap": "swap",
    "switch": "swap",
    "purge": "purge",
    "reset": "purge",
    "use": "use",
}
_MODULE_QUERIES = ("list", "avail", "av", "show", "spider", "help", "whatis", "restore", "save", "refresh", "unuse")


def _module_action(words: Sequence[str]) -> tuple[str, list[str]]:
    """Action of a module command, and its modules. `ml a -b` loads a and unloads b."""
    names = [word for word in words[1:] if not word.startswith("-")]
    first = names[0] if names else "list"
    if first in _MODULE_ACTIONS:
        return _MODULE_ACTIONS[first], names[1:]
    return ("load", names) if words[0] == "ml" and first not in _MODULE_QUERIES else ("", [])


def _apply(loaded: dict[str, int], action: str, names: Sequence[str], line: int) -> None:
    if action == "purge":
        loaded.clear()
    gone = {*(names[:1] if action == "swap" and len(names) == 2 else names if action == "unload" else ())}
    for old in [module for module in loaded if gone & {module, module.split("/")[0]}] if gone else ():
        del loaded[old]
    if action in ("load", "swap"):
        loaded.update(dict.fromkeys(names[-1:] if action == "swap" else names, line))


def _setup_note(found: LaunchLines, commands: Sequence[tuple[int, list[str]]]) -> None:
    lines = [
        str(line)
        for line, words in commands
        if words[0] in ("source", ".") or words[:2] in (["conda", "activate"], ["micromamba", "activate"])
    ]
    if lines:
        found.notes.append(
            f"The set-up of line {', '.join(lines)} (source, conda activate) was left out: launcher.slurm.setup_file"
            " takes a file with it."
        )


def _step(found: LaunchLines, commands: Sequence[tuple[int, list[str]]]) -> None:
    """The srun with the most words starts the training; others list nodes and find addresses."""
    steps = [(line, words[words.index("srun") + 1 :]) for line, words in commands if "srun" in words[:3]]
    if not steps:
        return
    line, words = max(steps, key=lambda step: len(step[1]))
    found.has_step = True
    found.step = read_options(words, SRUN_OPTIONS, SRUN_LETTERS, f"srun --{{}} (line {line})")
    values = found.step.values
    if "cpu_bind" in values:
        values["cpu-bind"] = values.pop("cpu_bind")
    options = [_option(name, values[name]) for name in _STEP_OPTIONS if name in values]
    if options:
        found.keys["launch"] = {"srun": options}
        found.origins["launch"] = f"srun (line {line})"


_STEP_OPTIONS = tuple(
    name
    for name in SRUN_KEYS
    if name not in ("threads-per-core", "hint", "network", "cpu-freq", "gpu-freq")
    and name not in ("gpus-per-task", "gres-flags")
)
"""Options that only srun takes here; the others have a key, or are written as a directive."""


def _option(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _container(found: LaunchLines, commands: Sequence[tuple[int, list[str]]]) -> None:
    step = found.step
    if image := step.values.get("container-image"):
        found.keys["container"] = pyxis_container(image, step.values)
        found.origins["container"] = step.origins["container-image"]
        return
    for line, words in commands:
        for index, word in enumerate(words):
            program = PurePosixPath(word).name
            if program in ("apptainer", "singularity") and words[index + 1 : index + 2] in (["exec"], ["run"]):
                _apptainer(found, words[index + 2 :], f"{program} {words[index + 1]} (line {line})")
                break
            if program == "shifter":
                _shifter(found, words[index + 1 :], f"shifter (line {line})")
                break


def pyxis_container(image: str, options: Mapping[str, str]) -> dict[str, Any]:
    """The container section of these options of pyxis."""
    mounts = _mounts([options.get("container-mounts", "")])
    return _whole("pyxis", image, mounts, "container-writable" in options)


def _whole(runtime: str, image: str, mounts: list[str], writable: bool) -> dict[str, Any]:
    container: dict[str, Any] = {"runtime": runtime, "image": image}
    return container | ({"mounts": mounts} if mounts else {}) | ({"writable": True} if writable else {})


def _mounts(lists: Iterable[str]) -> list[str]:
    """Mounts between commas; a path alone is mounted at itself."""
    parts = [part for text in lists for part in text.split(",") if part]
    return [part if ":" in part else f"{part}:{part}" for part in parts]


_APPTAINER_VALUES = frozenset(
    (
        *("-B", "--bind", "--mount", "--env", "--env-file", "--pwd", "--cwd", "-H", "--home", "-W"),
        *("--workdir", "-S", "--scratch", "-o", "--overlay", "--app", "--dns", "--network"),
        *("--network-args", "--hostname", "--security", "--add-caps", "--drop-caps", "--fusemount"),
        *("--pem-path", "--apply-cgroups"),
    )
)


def _apptainer(found: LaunchLines, words: Sequence[str], origin: str) -> None:
    options, rest = _split(words, _APPTAINER_VALUES)
    if not rest:
        return
    writable = any(name in ("--writable", "--writable-tmpfs", "-w") for name, _ in options)
    mounts = _mounts(value for name, value in options if name in ("-B", "--bind"))
    gpus = next((name[2:] for name, _ in options if name in ("--nv", "--rocm")), None)
    found.keys["container"] = _whole("apptainer", rest[0], mounts, writable) | ({"gpus": gpus} if gpus else {})
    found.origins["container"] = origin
    read = ("-B", "--bind", "--nv", "--rocm", "--writable", "--writable-tmpfs", "-w", "--pwd", "--cwd")
    _note_others(found, options, read, origin)


_SHIFTER_VALUES = frozenset(
    (*("--image", "-i", "--volume", "-V", "--workdir"), *("-w", "--env", "-e", "--module", "-m", "--env-file"))
)


def _shifter(found: LaunchLines, words: Sequence[str], origin: str) -> None:
    options, _ = _split(words, _SHIFTER_VALUES)
    given = dict(options)
    if image := given.get("--image", given.get("-i")):
        mounts = _mounts(";".join(v for n, v in options if n in ("--volume", "-V")).split(";"))
        found.keys["container"] = _whole("shifter", image, mounts, writable=False)
        found.origins["container"] = origin
        _note_others(found, options, ("--image", "-i", "--volume", "-V", "--workdir", "-w"), origin)


def _split(words: Sequence[str], with_value: frozenset[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """(the options with their values, the words after them)."""
    options, rest = [], deque(words)
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.popleft().partition("=")
        options.append((name, rest.popleft() if name in with_value and not equals and rest else value))
    return options, list(rest)


def _note_others(found: LaunchLines, options: Iterable[tuple[str, str]], read: Sequence[str], origin: str) -> None:
    others = ", ".join(dict.fromkeys(name for name, _ in options if name not in read))
    if others:
        found.notes.append(f"Options of {origin} were left out: {others}.")


_FOR_SPEED = re.compile(
    r"(NCCL|UCX|FI|RCCL|HSA|MIOPEN|TORCH_NCCL)_\w+|OMP_NUM_THREADS|PYTORCH_((CUDA|HIP)_)?ALLOC_CONF"
)
_NEEDLESS = re.compile(r"CUDA_DEVICE_MAX_CONNECTIONS|NCCL_DEBUG\w*|CUDA_VISIBLE_DEVICES|" + "|".join(RANK_NAMES))
"""Variables that Parlay sets itself, or that only change what is logged."""


def _variables(found: LaunchLines, exported: Mapping[str, str]) -> None:
    relevant = {name: value for name, value in exported.items() if not _NEEDLESS.fullmatch(name)}
    env = {name: value for name, value in relevant.items() if _FOR_SPEED.fullmatch(name) and _is_plain(name, value)}
    if env:
        found.keys["env"] = env
        found.origins["env"] = "export"
    others = ", ".join(name for name in relevant if name not in env)
    if others:
        found.notes.append(
            f"Exported variables that were left out: {others}. Add those that matter to speed to launcher.slurm.env."
        )


def _is_plain(name: str, value: str) -> bool:
    return bool(value) and not re.search(r"[$`\n]", value) and is_printable(value) and not looks_secret(value, name)
