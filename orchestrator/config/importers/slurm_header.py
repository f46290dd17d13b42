"""Slurm job of a launch script: its size, and the keys of launcher.slurm. Pure, nothing is executed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.importers.bash.script import Word
from orchestrator.config.importers.slurm_launch import Commands, SlurmKeys, read_commands, variables_for_speed
from orchestrator.config.importers.slurm_options import (
    CONTAINER,
    DIRECTIVE,
    KEY,
    STEP,
    Options,
    listed,
    read_directives,
)
from orchestrator.config.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.validation import FILL_IN


@dataclass(frozen=True)
class Size:
    """A number of nodes, or of GPUs or tasks on each, and where it was read; None where it is not known."""

    count: int | None = None
    origin: str | None = None


@dataclass(frozen=True)
class Sizes:
    """Nodes of a job or of a step, and GPUs and tasks on each. Where no option says the tasks, their origin is None."""

    nodes: Size = Size()
    gpus: Size = Size()
    tasks: Size = Size()


@dataclass(frozen=True)
class SlurmHeader:
    """A script's Slurm job, None where it is none, and the step of it that starts the training, None without an srun.

    `launcher` is the section of the search file, empty without a job, with keys that its schema accepts, and FILL_IN.
    `origins` says where each key of the search file (`launcher.slurm.account`) was read.
    """

    job: Sizes | None = None
    step: Sizes | None = None
    accelerator: str | None = None
    launcher: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)


def read_slurm_header(text: str, words: Sequence[Word], commands: Commands, exported: Mapping[str, str]) -> SlurmHeader:
    """Read the job of this script, of the srun that starts the training command `words`, and of the commands around it.

    An srun in no job asks for its own.
    """
    given, found = read_directives(text), SlurmKeys()
    read_commands(found, commands)
    of_job, step = _sizes(given, found.notes), None
    if "srun" in (programs := [word.text for word in words[:3]]):
        given.add(deque(words[programs.index("srun") + 1 :]), "srun")
        step = _sizes(given, found.notes)
    if not given.is_job and step is None:
        given_up = f"The script has no #SBATCH header: its {', '.join(found.keys)} were left out."
        return SlurmHeader(notes=(given_up,) if found.keys else ())
    _keys(given, found)
    _generic_resources(given, found)
    _cpus(given, step or of_job, found)
    found.keep("env", variables_for_speed(exported), "export")
    accelerator = _accelerator(given, found)
    if left := [*given.unread, *found.unread]:
        found.notes.append(f"Not read of the Slurm job: {listed(left)}.")
    slurm = {name: found.keys[name] for name in SlurmSection.model_fields if name in found.keys}
    return SlurmHeader(
        of_job if given.is_job else step,
        step,
        accelerator,
        {"kind": "slurm"} | ({"slurm": slurm} if slurm else {}),
        tuple(dict.fromkeys(found.notes)),
        found.origins,
    )


def job_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets in the job of this script, as far as its header decides them."""
    given = read_directives(text)
    job = _sizes(given, [])
    nodes, tasks = job.nodes.count, job.tasks.count
    total = nodes * tasks if nodes and tasks else None
    numbers = {
        "JOB_NUM_NODES": nodes,
        "NNODES": nodes,
        "GPUS_ON_NODE": job.gpus.count,
        "NTASKS": total,
        "NPROCS": total,
    }
    as_written = {name.upper().replace("-", "_"): given.values.get(name) for name in _VARIABLES}
    found = {**numbers, **as_written}
    return {f"SLURM_{name}": str(value) for name, value in found.items() if value not in (None, FILL_IN)}


_VARIABLES = ("cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-node")


def _sizes(given: Options, notes: list[str]) -> Sizes:
    """The sizes that the options say, in the order of how surely they do."""
    nodes, tasks = _number(given, "nodes", notes), _number(given, "ntasks-per-node", notes)
    if tasks.origin is None:
        tasks = _on_each(_number(given, "ntasks", notes), nodes)
    of_node, gres, total, of_task = (_gpus(given, name, notes)[1] for name in _GPU_OPTIONS)
    of_tasks = Size(of_task.count and tasks.count and of_task.count * tasks.count, _origins(of_task, tasks))
    gpus = next((size for size in (of_node, gres, _on_each(total, nodes), of_tasks) if size.count), Size())
    return Sizes(nodes, gpus, tasks)


def _number(given: Options, name: str, notes: list[str]) -> Size:
    """The option's whole number; no count, with a note, for a range or a placeholder."""
    if name not in given.values:
        return Size()
    found = re.fullmatch(r"([1-9][0-9]{0,8})(-\1)?", given.values[name])
    if not found:
        notes.append(_unknown(name))
    return Size(int(found[1]) if found else None, given.origins[name])


def _unknown(name: str) -> str:
    return f"--{name} does not say a whole number of at least 1: fill in what follows from it."


def _on_each(total: Size, nodes: Size) -> Size:
    """The part of each node, where that is a whole number."""
    each, rest = divmod(total.count or 0, nodes.count or 1)
    return Size(each if nodes.count and not rest else None, total.origin and _origins(total, nodes))


def _origins(*sizes: Size) -> str:
    return ", ".join(size.origin for size in sizes if size.origin)


_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_GPUS = re.compile(r"(?:^|,|gres/)gpu(?::([^:,]*[^:,\d][^:,]*))?(?::(\d{1,7}))?(?![^,])")


def _gpus(given: Options, name: str, notes: list[str]) -> tuple[str, Size]:
    """(type, number) of the GPUs in `a100:8`, or in the gres `gpu:a100:8,nvme`; an empty type where none is said.

    A type alone is one GPU if its name has a digit; otherwise it is a placeholder, whose number is not known.
    """
    text = given.values.get(name, "")
    found = _GPUS.search(text if name == "gres" else f"gpu:{text}") if text else None
    if not found and text != FILL_IN:
        return "", Size()
    kind, number = (found[1] or "", found[2]) if found else ("", "0")
    is_one = not kind or re.search(r"\d", kind)
    count = int(number) if number else 1 if is_one else 0
    if not count:
        notes.append(_unknown(name))
    return kind if count else "", Size(count or None, given.origins[name])


def _accelerator(given: Options, found: SlurmKeys) -> str | None:
    """The accelerator that a type of GPUs names; None, with a note, for half a name."""
    typed = ((name, _gpus(given, name, [])[0]) for name in _GPU_OPTIONS)
    name, kind = next((each for each in typed if each[1]), ("", ""))
    if not kind:
        return None
    try:
        accelerator = accelerator_named(kind).name
    except InputError:
        known = [each for each in ACCELERATORS if each.startswith(f"{kind.lower()}-")]
        found.notes.append(
            f"{kind} (--{name}) is no accelerator's whole name: write {' or '.join(known) or 'another'}."
        )
        return None
    found.origins["cluster.accelerator"] = given.origins[name]
    return accelerator


def _keys(given: Options, found: SlurmKeys) -> None:
    """The options with a key of their own, and those that are part of another."""
    for name, value in given.of_use(KEY).items():
        key = name.replace("-", "_")
        if key in SlurmSection.refused:
            found.notes.append(f"--{name} was left out: {SlurmSection.refused[key]}.")
        else:
            found.keep(key, _VALUES.get(name, str)(value), given.origins[name])
    if directives := given.of_use(DIRECTIVE):
        found.keep("directives", _words(directives), given.origin(*directives))
    if binding := given.of_use(STEP):
        found.keep("launch", {"srun": _words(binding)}, given.origin(*binding))
    container = given.of_use(CONTAINER)
    if image := container.get("container-image"):
        mounts, writable = container.get("container-mounts", ""), "container-writable" in container
        found.keep_container(given.origin(*container), "pyxis", image, mounts, writable=writable)
    else:
        found.unread += [f"--{name}" for name in container]


def _generic_resources(given: Options, found: SlurmKeys) -> None:
    """Types and resources besides GPUs as gres; a plain number of GPUs follows cluster.gpus_per_node."""
    text = given.values.get("gres", "none")
    entries = [entry.removeprefix("gres/") for entry in text.split(",") if entry not in ("", "none")]
    others = [entry for entry in entries if not _GPUS.search(entry)]
    typed, per_node = _gpus(given, "gpus-per-node", [])
    if typed:
        found.keep("gres", ",".join([f"gpu:{typed}:{per_node.count}", *others]), given.origin("gpus-per-node", "gres"))
    elif others or _gpus(given, "gres", [])[0]:
        found.keep("gres", ",".join(entries), given.origin("gres"))
    elif entries:
        found.keep("gpus_as", "gres", given.origin("gres"))


def _cpus(given: Options, sizes: Sizes, found: SlurmKeys) -> None:
    """CPU cores of a rank: Parlay starts one task per GPU, the script perhaps one per node."""
    per_task, gpus = _number(given, "cpus-per-task", found.notes), sizes.gpus.count
    tasks = sizes.tasks if sizes.tasks.origin else Size(1)
    if per_task.count and tasks.count and gpus:
        cpus = per_task.count * tasks.count // gpus
        found.keep("cpus_per_task", cpus, _origins(per_task, tasks))
        if tasks.count != gpus:
            how = f"{per_task.count} cores of {tasks.count} task(s) over {gpus} GPUs a node"
            found.notes.append(f"cpus_per_task is {cpus}: {how}.")
    elif per_task.count:
        found.notes.append("--cpus-per-task was left out: cores per GPU do not follow from the header.")


def _words(options: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


_VALUES: Mapping[str, Callable[[str], Any]] = {
    "exclusive": lambda text: text or True,
    "mem": lambda text: re.sub(r"(?i)([KMGT])B?$", lambda unit: unit[1].upper(), text),
    # Host lists between commas, but not those in brackets.
    **dict.fromkeys(("exclude", "nodelist"), lambda text: re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)),
    **dict.fromkeys(("threads-per-core", "segment"), lambda text: int(text) if text.isdecimal() else text),
}
"""Values that are more than the option's text."""
