"""Slurm header of a launch script: the job's size and the keys of launcher.slurm. Pure, nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.slurm_directives import GivenOptions, read_directives
from orchestrator.importers.slurm_launch import LaunchLines, pyxis_container, read_launch_lines
from orchestrator.importers.slurm_options import SBATCH_OPTIONS, SRUN_OPTIONS
from orchestrator.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.unsafe_text import is_printable, looks_secret
from search_spaces.schema.validation import restore
from search_spaces.schema.yaml_document import KeyPath, format_key_path, parse_key_path


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


def read_slurm_header(
    given: GivenOptions, commands: Iterable[tuple[int, Sequence[str]]], exported: Mapping[str, str]
) -> SlurmHeader:
    """Read the options of a script's job. `commands` are its commands as (line, words), `exported` its exported
    variables."""
    lines = read_launch_lines(commands, exported)
    if not (given.has_header or lines.step.values):
        left = ", ".join(lines.keys)
        return SlurmHeader(notes=(f"The script has no #SBATCH header: its {left} were left out.",) if left else ())
    return _HeaderReader(given, lines).header()


def job_variables(text: str) -> dict[str, str]:
    """Variables that Slurm sets in the job of this script, as far as its header decides them."""
    given = read_directives(text)
    reader = _HeaderReader(given, LaunchLines())
    nodes = reader.nodes()
    names, tasks_per_node = reader.tasks(nodes)
    tasks = tasks_per_node * nodes if names and nodes and tasks_per_node else None
    counts = {
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NNODES": nodes,
        "SLURM_GPUS_ON_NODE": reader.gpus(nodes),
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
    }
    as_written = {
        "SLURM_CPUS_PER_TASK": "cpus-per-task",
        "SLURM_GPUS": "gpus",
        "SLURM_GPUS_PER_NODE": "gpus-per-node",
        "SLURM_GPUS_PER_TASK": "gpus-per-task",
        "SLURM_NTASKS_PER_NODE": "ntasks-per-node",
    }
    written = {name: reader.values[option] for name, option in as_written.items() if option in reader.values}
    return {name: str(count) for name, count in counts.items() if count} | written


class _HeaderReader:
    """Maps the options to the search file, with a note for what it leaves out."""

    def __init__(self, given: GivenOptions, lines: LaunchLines):
        self.lines = lines
        self.notes = [*given.notes, *SBATCH_OPTIONS.notes(_as_given(given))]
        self.notes += [n for n in SRUN_OPTIONS.notes(_as_given(lines.step)) if n not in self.notes]
        # The launch line's options win over the header's, which they narrow to the step.
        narrowing = [name for name in _OF_A_STEP if given.has_header and name in lines.step.values]
        if narrowing:
            named = ", ".join(f"--{name}" for name in narrowing)
            self.notes.append(f"Options of srun were left out, since a trial's step has its whole job: {named}.")
        whole, part = given.values.get("nodes"), lines.step.values.get("nodes")
        if part and whole and part != whole:
            self.notes.append(f"srun --nodes is {part}, as the command starts its ranks; the job has {whole}.")
        step = {name: value for name, value in lines.step.values.items() if name not in narrowing}
        self.values = dict(self._believed(given.values | step))
        self.origins_given = given.origins | lines.step.origins
        self.origins: dict[str, str] = {}
        self.slurm: dict[str, Any] = {}

    def header(self) -> SlurmHeader:
        nodes = self.nodes()
        gpus = self.gpus(nodes)
        accelerator = self._accelerator()
        self._generic_resources()
        self._texts()
        self._cpus(nodes, gpus)
        self._launch_lines()
        return SlurmHeader(
            True,
            nodes,
            gpus,
            self.lines.has_step,
            self._step_tasks(nodes, gpus),
            accelerator,
            self._accepted(),
            tuple(dict.fromkeys(self.notes)),
            self._kept_origins(),
        )

    def _believed(self, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        for name, value in values.items():
            if name in _PLACEHOLDER_KEYS and _is_placeholder(value):
                self.notes.append(f"--{name} is a placeholder: set launcher.slurm.{_key(name)} if your site needs it.")
            elif not _is_safe(value, name):
                self._leave_out(f"--{name}")
            else:
                yield name, value

    def _leave_out(self, what: str) -> None:
        self.notes.append(f"{what} was left out: its value looks like a secret or cannot be printed.")

    def _from(self, key: str, *names: str) -> None:
        self.origins[key] = ", ".join(self.origins_given[name] for name in names)

    def _count(self, name: str) -> int | None:
        value = self.values.get(name)
        if value is None or re.fullmatch(r"[1-9][0-9]{0,8}", value):
            return None if value is None else int(value)
        self.notes.append(f"--{name} was left out: its value is no whole number of at least 1.")
        return None

    def nodes(self) -> int | None:
        lowest, _, highest = self.values.get("nodes", "").partition("-")
        if highest and highest != lowest:
            self.notes.append("--nodes is a range: fill in cluster.num_nodes.")
            return None
        if "nodes" in self.values:
            self.values["nodes"] = lowest
        nodes = self._count("nodes")
        if nodes is not None:
            self._from("cluster.num_nodes", "nodes")
        return nodes

    def gpus(self, nodes: int | None) -> int | None:
        """GPUs of a node, by the first option that says it."""
        for names, count in self._gpu_counts(nodes):
            if count:
                self._from("cluster.gpus_per_node", *names)
                return count
        return None

    def _gpu_counts(self, nodes: int | None) -> Iterator[tuple[tuple[str, ...], int | None]]:
        per_node, gres, whole, per_task = (
            _gpu_number(self.values.get(n, "")) for n in ("gpus-per-node", "gres", "gpus", "gpus-per-task")
        )
        yield ("gpus-per-node",), per_node
        yield ("gres",), gres
        if whole and nodes:
            if whole % nodes:
                self.notes.append(f"--gpus={whole} is no multiple of --nodes={nodes}: fill in cluster.gpus_per_node.")
            else:
                yield ("gpus", "nodes"), whole // nodes
        names, tasks = self.tasks(nodes)
        if per_task and tasks and names:
            yield ("gpus-per-task", *names), per_task * tasks

    def tasks(self, nodes: int | None) -> tuple[tuple[str, ...], int | None]:
        """Tasks of a node and the options that say it; sbatch's default is one."""
        on_line = self.lines.step.values
        for name in ("ntasks-per-node", "tasks-per-node"):
            # A number of all tasks on the launch line prevails over the header's number for each node.
            if name in self.values and not ("ntasks" in on_line and name not in on_line):
                return (name,), self._count(name)
        ntasks = self._count("ntasks")
        if ntasks is None:
            return (), 1
        return ("ntasks", "nodes"), ntasks // nodes if nodes and ntasks % nodes == 0 else None

    def _step_tasks(self, nodes: int | None, gpus: int | None) -> int | None:
        """Tasks of the srun that starts the training."""
        if not self.lines.has_step:
            return None
        if self.values.get("ntasks-per-gpu") == "1":
            self._from("tasks_per_node", "ntasks-per-gpu")
            return gpus
        names, tasks = self.tasks(nodes)
        if names:
            self._from("tasks_per_node", *(name for name in names if name in self.origins_given))
            return tasks
        return None

    def _accelerator(self) -> str | None:
        kinds = [(n, k) for n in _GPU_OPTIONS if (k := _gpu_type(self.values.get(n, "")))]
        constraint = self.values.get("constraint", "")
        if not kinds and "|" not in constraint:
            kinds = [("constraint", word) for word in re.split(r"[&,*()\[\]]", constraint) if _is_gpu_name(word)]
        if not kinds:
            return None
        name, kind = kinds[0]
        try:
            found = accelerator_named(kind).name
        except InputError:
            sizes = [known for known in ACCELERATORS if known.startswith(kind.lower() + "-")]
            known = f": write {' or '.join(sizes)}" if sizes else ""
            self.notes.append(f"{kind} (--{name}) is no accelerator's whole name{known}.")
            return None
        self._from("cluster.accelerator", name)
        return found

    def _generic_resources(self) -> None:
        """Types and resources besides GPUs as gres; a plain number of GPUs follows cluster.gpus_per_node."""
        gres = self.values.get("gres", "")
        entries = [entry for entry in gres.split(",") if entry and entry != "none"]
        others = [entry for entry in entries if entry.split(":")[0] not in ("gpu", "gres/gpu")]
        typed = _gpu_type(self.values.get("gpus-per-node", ""))
        if _gpu_type(gres) or (others and len(others) < len(entries)):
            self._set("gres", ",".join(entry.removeprefix("gres/") for entry in entries), "gres")
        elif typed:
            gpu = f"gpu:{self.values['gpus-per-node']}"
            self._set("gres", ",".join([gpu, *others]), "gpus-per-node", *(["gres"] if others else []))
        elif entries and not others:
            self._set("gpus_as", "gres", "gres")
        elif others:
            self._set("gres", ",".join(others), "gres")

    def _set(self, key: str, value: Any, *names: str) -> None:
        self.slurm[key] = value
        self._from(f"launcher.slurm.{key}", *names)

    def _texts(self) -> None:
        for name in _TEXTS:
            if name in self.values:
                self._set(name, self.values[name], name)
        if "mem" in self.values:
            self._set("mem", re.sub(r"(?i)([KMGT])B?$", lambda m: m[1].upper(), self.values["mem"]), "mem")
        for name in ("exclude", "nodelist"):
            if name in self.values:
                self._set(name, _host_lists(self.values[name]), name)
        if "exclusive" in self.values:
            self._set("exclusive", self.values["exclusive"] or True, "exclusive")
        if threads := self._count("threads-per-core"):
            self._set("threads_per_core", threads, "threads-per-core")
        if segment := self._count("segment"):
            self._set("segment", segment, "segment")
        found = [name for name in _DIRECTIVES if name in self.values]
        if found:
            self._set("directives", [f"--{name}={self.values[name]}" for name in found], *found)

    def _cpus(self, nodes: int | None, gpus: int | None) -> None:
        """CPU cores of a rank: Parlay starts one task per GPU, the script perhaps one per node."""
        if per_gpu := self._count("cpus-per-gpu"):
            self._set("cpus_per_task", per_gpu, "cpus-per-gpu")
            return
        per_task = self._count("cpus-per-task")
        if per_task is None:
            return
        names, tasks = self.tasks(nodes)
        cpus = per_task * tasks // gpus if tasks and gpus else 0
        if cpus < 1:
            self.notes.append("--cpus-per-task was left out: cores per GPU do not follow from the header.")
            return
        self._set("cpus_per_task", cpus, "cpus-per-task", *names)
        if tasks != gpus:
            self.notes.append(f"cpus_per_task is {cpus}: {per_task} cores of {tasks} task(s) over {gpus} GPUs a node.")

    def _launch_lines(self) -> None:
        for key, value in self.lines.keys.items():
            if _is_safe(value, key):
                self.slurm[key] = value
            else:
                self._leave_out(f"launcher.slurm.{key} of {self.lines.origins[key]}")
        self.notes += self.lines.notes
        self.origins |= {f"launcher.slurm.{key}": origin for key, origin in self.lines.origins.items()}
        self._pyxis()
        bound = [f"--{name}={self.values[name]}" for name in ("mem-bind", "gpu-bind") if name in self.values]
        known = self.slurm.get("launch", {}).get("srun", [])
        if new := [word for word in bound if word not in known]:
            self.slurm["launch"] = {"srun": [*known, *new]}
            self.origins.setdefault("launcher.slurm.launch", "#SBATCH " + ", ".join(new))

    def _pyxis(self) -> None:
        """The container of pyxis, whose options may stand in the header and on the launch line."""
        if image := self.values.get("container-image"):
            options = ("container-image", "container-mounts", "container-writable")
            given = [name for name in options if name in self.values]
            self._set("container", pyxis_container(image, self.values), *given)
        elif self.slurm.get("container", {}).get("runtime") == "pyxis":
            del self.slurm["container"]

    def _accepted(self) -> dict[str, Any]:
        """The section without what its schema refuses, which is named but not shown."""
        data = self.slurm
        while True:
            try:
                restore(SlurmSection, data)
            except InputError as error:
                rules = {_removed(parse_key_path(p.key or "")): p.rule for p in error.problems}
                paths = frozenset(rules)
                for path, rule in rules.items():
                    origin = self.origins.get(f"launcher.slurm.{path[0]}", "the script") if path else "the script"
                    self.notes.append(
                        f"launcher.slurm.{format_key_path(path)} of {origin} was left out; the rule: {rule}"
                    )
                reduced = {} if () in paths else _without(data, paths)
                data = reduced if reduced != data else {}
            else:
                self.slurm = data
                return data

    def _kept_origins(self) -> dict[str, str]:
        return {
            key: origin
            for key, origin in self.origins.items()
            if not key.startswith("launcher.") or key.split(".")[2] in self.slurm
        }


_TEXTS = ("account", "partition", "qos", "reservation", "constraint", "network", "licenses", "comment")
_DIRECTIVES = (
    *("core-spec", "cpu-freq", "gpu-freq", "gres-flags", "hint", "mem-per-cpu", "mem-per-gpu", "mincpus"),
    *("switches", "thread-spec", "wckey"),
)
_PLACEHOLDER_KEYS = frozenset((*_TEXTS, "nodelist", "exclude", "wckey", "container-image"))
_OF_A_STEP = ("exclusive", "exclude", "nodelist", "mem", "network")
"""Options by which srun chooses among the job's own nodes and memory."""
_GPU_OPTIONS = ("gpus-per-node", "gres", "gpus", "gpus-per-task")
_PLACEHOLDER = re.compile(
    r"[<>$`{}]|^(x{3,}|\.{3,}|\?+|todo|tbd|fill[_-]?in|change[_-]?me|account|partition|project|"
    r"(account|partition|project)[_-]?name)$|(^|[_-])(your|my)[_-]|^replace",
    re.IGNORECASE,
)


def _as_given(given: GivenOptions) -> dict[str, str]:
    """The options; one without a value is not taken for a value that is empty."""
    return {name: value or "given" for name, value in given.values.items()}


def _is_safe(value: Any, key: str) -> bool:
    """False for a value, or one with a part, that looks like a secret or cannot be printed. An option in it has a key
    of its own, as in `--key=value`."""
    if isinstance(value, Mapping):
        return all(_is_safe(inner, name) for name, inner in value.items())
    if isinstance(value, list):
        return all(_is_safe(inner, key) for inner in value)
    name, _, text = value.partition("=") if isinstance(value, str) and value.startswith("--") else (key, "", str(value))
    return is_printable(text) and not looks_secret(text, name)


def _is_placeholder(value: str) -> bool:
    return not value or bool(_PLACEHOLDER.search(value))


def _key(name: str) -> str:
    return "container.image" if name == "container-image" else "directives" if name == "wckey" else name


def _gpu_entry(text: str) -> str | None:
    """`a100:8` of `gres/gpu:a100:8,nvme` and of `a100:8`; None where the text names other resources alone."""
    entries = [entry.removeprefix("gres/") for entry in text.split(",")]
    found = next((e for e in entries if e == "gpu" or e.startswith("gpu:")), None)
    if found is not None:
        return found.partition(":")[2] or "1"
    return entries[0] if re.fullmatch(r"(\w[\w.-]*:)?[0-9]+", entries[0]) else None


def _gpu_number(text: str) -> int | None:
    entry = _gpu_entry(text)
    if entry is None:
        return None
    count = entry.split("(")[0].rpartition(":")[2]
    return int(count) if re.fullmatch(r"[1-9][0-9]{0,6}", count) else 1 if not count.isdigit() else None


def _gpu_type(text: str) -> str | None:
    kind = (_gpu_entry(text) or "").split(":")[0]
    return kind if kind and not kind.isdigit() else None


def _is_gpu_name(word: str) -> bool:
    try:
        return accelerator_named(word).name != "cpu"
    except InputError:
        return any(known.startswith(word.lower() + "-") for known in ACCELERATORS if word)


def _host_lists(text: str) -> list[str]:
    """Host lists between commas, but not those in brackets."""
    return re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)


def _removed(path: KeyPath) -> KeyPath:
    """The part to leave out for a problem at this path: a list's entry or a variable, else the whole key."""
    if path[:1] == ("env",) or (path and isinstance(path[-1], int)):
        return path
    return path[:1]


def _without(data: Any, paths: Iterable[KeyPath], above: KeyPath = ()) -> Any:
    gone = set(paths)
    if isinstance(data, Mapping):
        kept = {k: _without(v, gone, (*above, k)) for k, v in data.items() if (*above, k) not in gone}
        return {k: v for k, v in kept.items() if v not in ([], {})}
    if isinstance(data, list):
        return [_without(v, gone, (*above, i)) for i, v in enumerate(data) if (*above, i) not in gone]
    return data
