"""Slurm header of a launch script: the job's size and the keys of launcher.slurm. Pure, nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.slurm_launch import PLACEHOLDER, Commands, Section, read_launch_lines
from orchestrator.importers.slurm_options import OPTIONS, Given, Use, listed, read_directives
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.schema.presets import accelerator_named


@dataclass(frozen=True)
class SlurmHeader:
    """Options of a script's Slurm job. `slurm` has keys of launcher.slurm, which its schema accepts.

    `has_step` says whether an srun starts the training, and `tasks_per_node` its tasks where they are known. `origins`
    says where each key of the search file (`cluster.num_nodes`, `launcher.slurm.account`) was read.
    Without an `#SBATCH` line, and without an srun that asks for the nodes itself, everything but the notes is empty.
    """

    has_header: bool = False
    num_nodes: int | None = None
    gpus_per_node: int | None = None
    has_step: bool = False
    tasks_per_node: int | None = None
    accelerator: str | None = None
    slurm: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def launcher(self) -> dict[str, Any]:
        """The launcher section; empty if the script is no Slurm job."""
        if not self.has_header:
            return {}
        return {"kind": "slurm"} | ({"slurm": dict(self.slurm)} if self.slurm else {})


def read_slurm_header(text: str, commands: Commands, exported: Mapping[str, str]) -> SlurmHeader:
    """Read the options of this script's job, with its commands and its exported variables."""
    given = read_directives(text)
    found = read_launch_lines(given, commands, exported)
    if given.is_job or given.values or given.unread:
        return _HeaderReader(given, found).header()
    left = ", ".join(key for key in found.keys if key != "env")
    return SlurmHeader(notes=(f"The script has no #SBATCH header: its {left} were left out.",) if left else ())


def job_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets in the job of this script, as far as its header decides them."""
    job = _HeaderReader(read_directives(text), Section())
    tasks = job.nodes * job.tasks if job.nodes and job.tasks and job.task_options else None
    numbers = {"JOB_NUM_NODES": job.nodes, "NNODES": job.nodes, "GPUS_ON_NODE": job.gpus}
    numbers |= {"NTASKS": tasks, "NPROCS": tasks}
    as_written = {name.upper().replace("-", "_"): job.values.get(name) for name in _VARIABLES}
    return {f"SLURM_{name}": str(value) for name, value in {**numbers, **as_written}.items() if value}


_VARIABLES = ("cpus-per-task", "gpus", "gpus-per-node", "gpus-per-task", "ntasks-per-node")


class _HeaderReader:
    """Adds to a section what the options of a job say, with a note for what is left out."""

    def __init__(self, given: Given, found: Section):
        self.given, self.values = given, given.values
        self.found, self.notes = found, found.notes
        self.nodes = self._number("nodes")
        self.task_options, self.tasks = self._tasks()
        self.gpu_requests = {name: self._gpu_request(name) for name in _GPU_OPTIONS}
        self.gpu_options, self.gpus = next((count for count in self._gpu_counts() if count[1]), ((), None))

    def header(self) -> SlurmHeader:
        accelerator = self._accelerator()
        if self.nodes:
            self.found.origins["cluster.num_nodes"] = self._origin(["nodes"])
        if self.gpus:
            self.found.origins["cluster.gpus_per_node"] = self._origin(self.gpu_options)
        if self.task_options:
            self.found.origins["tasks_per_node"] = self._origin(self.task_options)
        self._options()
        self._generic_resources()
        self._cpus()
        left = [*self.given.unread, *self.found.unread]
        unread = [f"Not read of the Slurm job: {listed(left)}."] if left else []
        return SlurmHeader(
            has_header=True,
            num_nodes=self.nodes,
            gpus_per_node=self.gpus,
            has_step=self.found.has_step,
            tasks_per_node=self.tasks if self.task_options and self.found.has_step else None,
            accelerator=accelerator,
            slurm=self.found.in_order(),
            notes=tuple(dict.fromkeys((*self.notes, *unread))),
            origins=self.found.origins,
        )

    def _origin(self, names: Iterable[str]) -> str:
        return ", ".join(self.given.origins[name] for name in names if name in self.given.origins)

    def _set(self, key: str, value: Any, *names: str) -> None:
        self.found.keep(key, value, self._origin(names))

    def _number(self, name: str) -> int | None:
        """The option's whole number; None where it is absent and, with a note, for a range or a placeholder."""
        value = self.values.get(name)
        found = re.fullmatch(r"([1-9][0-9]{0,8})(-\1)?", value or "")
        if value is not None and not found:
            self._note_unknown(name)
        return int(found[1]) if found else None

    def _note_unknown(self, name: str) -> None:
        self.notes.append(f"--{name} does not say a whole number of at least 1: fill in what follows from it.")

    def _tasks(self) -> tuple[tuple[str, ...], int | None]:
        """(the options that say the tasks of a node, their number); sbatch's default is one."""
        if "ntasks-per-node" in self.values:
            return ("ntasks-per-node",), self._number("ntasks-per-node")
        tasks = self._number("ntasks")
        if tasks is None:
            return (), 1
        return ("ntasks", "nodes"), tasks // self.nodes if self.nodes and tasks % self.nodes == 0 else None

    def _gpu_request(self, name: str) -> tuple[str, int | None]:
        """(type, number) of the GPUs in `a100:8`, or in the gres `gpu:a100:8,nvme`; an empty type where none is said.

        A type alone is one GPU if its name has a digit. Otherwise it is a placeholder, and the number None.
        """
        text = self.values.get(name)
        found = _GPUS.search(text if name == "gres" else f"gpu:{text}") if text else None
        if not found:
            return "", None
        kind, number = found[1] or "", found[2] or "1"
        if not int(number) or (kind and not found[2] and (PLACEHOLDER.search(kind) or not re.search(r"\d", kind))):
            self._note_unknown(name)
            return "", None
        return "" if PLACEHOLDER.search(kind) else kind, int(number)

    def _gpu_counts(self) -> Iterator[tuple[tuple[str, ...], int | None]]:
        """(the options that say the GPUs of a node, their number), the surest first."""
        per_node, gres, whole, per_task = (count for _, count in self.gpu_requests.values())
        yield ("gpus-per-node",), per_node
        yield ("gres",), gres
        if whole and self.nodes and whole % self.nodes:
            self.notes.append(f"--gpus={whole} is no multiple of --nodes={self.nodes}: fill in cluster.gpus_per_node.")
        elif whole and self.nodes:
            yield ("gpus", "nodes"), whole // self.nodes
        if per_task and self.tasks and self.task_options:
            yield ("gpus-per-task", *self.task_options), per_task * self.tasks

    def _accelerator(self) -> str | None:
        """The accelerator that a type of GPUs or a node's feature names; None, with a note, for half a name."""
        found = [(name, kind) for name, (kind, _) in self.gpu_requests.items() if kind]
        constraint = self.values.get("constraint", "")
        if not found and "|" not in constraint:
            words = re.split(r"[&,*()\[\]]", constraint)
            found = [("constraint", word) for word in words if _sizes(word) or _named(word) not in (None, "cpu")]
        if not found:
            return None
        name, kind = found[0]
        accelerator = _named(kind)
        if accelerator:
            self.found.origins["cluster.accelerator"] = self._origin([name])
        else:
            known = f": write {' or '.join(_sizes(kind))}" if _sizes(kind) else ""
            self.notes.append(f"{kind} (--{name}) is no accelerator's whole name{known}.")
        return accelerator

    def _generic_resources(self) -> None:
        """Types and resources besides GPUs as gres; a plain number of GPUs follows cluster.gpus_per_node."""
        entries = [entry.removeprefix("gres/") for entry in self.values.get("gres", "none").split(",")]
        others = [entry for entry in entries if entry not in ("", "none") and not _GPUS.search(entry)]
        gpus = [entry for entry in entries if _GPUS.search(entry)]
        (kind, count), (typed, per_node) = self.gpu_requests["gres"], self.gpu_requests["gpus-per-node"]
        if typed:
            self._set("gres", ",".join([f"gpu:{typed}:{per_node}", *others]), "gpus-per-node", "gres")
        elif kind or others:
            self._set("gres", ",".join([*(gpus if count else ()), *others]), "gres")
        elif gpus:
            self._set("gpus_as", "gres", "gres")

    def _options(self) -> None:
        """The options with a key of their own, and those that are part of another."""
        of_use = {use: {n: v for n, v in self.values.items() if OPTIONS[n] is use} for use in Use}
        for name, value in of_use[Use.KEY].items():
            self._set(name.replace("-", "_"), _VALUES.get(name, str)(value), name)
        if directives := of_use[Use.DIRECTIVE]:
            self._set("directives", _words(directives), *directives)
        if step := of_use[Use.STEP]:
            self._set("launch", {"srun": _words(step)}, *step)
        container = of_use[Use.CONTAINER]
        if image := container.get("container-image"):
            mounts, writable = container.get("container-mounts", ""), "container-writable" in container
            self.found.keep_container(self._origin(container), "pyxis", image, mounts, writable=writable)

    def _cpus(self) -> None:
        """CPU cores of a rank: Parlay starts one task per GPU, the script perhaps one per node."""
        if per_gpu := self._number("cpus-per-gpu"):
            self._set("cpus_per_task", per_gpu, "cpus-per-gpu")
            return
        per_task = self._number("cpus-per-task")
        cpus = per_task * self.tasks // self.gpus if per_task and self.tasks and self.gpus else 0
        if cpus:
            self._set("cpus_per_task", cpus, "cpus-per-task", *self.task_options)
        elif per_task:
            self.notes.append("--cpus-per-task was left out: cores per GPU do not follow from the header.")
        if cpus and self.tasks != self.gpus:
            how = f"{per_task} cores of {self.tasks} task(s) over {self.gpus} GPUs a node"
            self.notes.append(f"cpus_per_task is {cpus}: {how}.")


_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_GPUS = re.compile(r"(?:^|,|gres/)gpu(?::([^:,]*[^:,\d][^:,]*))?(?::(\d{1,7}))?(?![^,])")


def _named(word: str) -> str | None:
    try:
        return accelerator_named(word).name
    except InputError:
        return None


def _sizes(word: str) -> list[str]:
    """Accelerators of this name that differ in memory."""
    return [known for known in ACCELERATORS if word and known.startswith(f"{word.lower()}-")]


def _words(options: Mapping[str, str]) -> list[str]:
    return [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]


def _host_lists(text: str) -> list[str]:
    """Host lists between commas, but not those in brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)


_VALUES: Mapping[str, Callable[[str], Any]] = {
    "exclusive": lambda text: text or True,
    "mem": lambda text: re.sub(r"(?i)([KMGT])B?$", lambda unit: unit[1].upper(), text),
    **dict.fromkeys(("exclude", "nodelist"), _host_lists),
    **dict.fromkeys(("threads-per-core", "segment"), lambda text: int(text) if text.isdecimal() else text),
}
"""Values that are more than the option's text."""
