"""Commands of a launch script that a Slurm job's section keeps: modules, container, srun's options, variables. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.slurm_options import Given, hyphened, listed, options_of
from orchestrator.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import is_printable, looks_secret
from search_spaces.schema.validation import restore
from slurm.environment import RANK_NAMES

Commands = Sequence[tuple[int, Sequence[str]]]
"""Commands of a script, as (line, words)."""
PLACEHOLDER = re.compile(
    r"[<>$`{}]|^(x{3,}|\.{3,}|\?+|todo|tbd|fill[_-]?in|change[_-]?me|account|partition|project|"
    r"(account|partition|project)[_-]?name)$|(^|[_-])(your|my)[_-]|^replace",
    re.IGNORECASE,
)
"""A value that the script's user is meant to replace, or one with a variable."""


@dataclass
class Section:
    """Keys of launcher.slurm with where they stand (`origins`, by the key's whole path), and what was left out: options
    by name (`unread`), and sentences (`notes`). `has_step` says whether an srun starts the training."""

    keys: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    has_step: bool = False

    def keep(self, key: str, value: Any, origin: str) -> None:
        """Keep this value of a key, or what the section takes of its entries."""
        if isinstance(value, list):
            value = [entry for entry in value if self._takes(key, [entry], origin)]
        elif not self._takes(key, value, origin):
            return
        if value:
            self.keys[key], self.origins[f"launcher.slurm.{key}"] = value, origin

    def _takes(self, key: str, value: Any, origin: str) -> bool:
        """False, with a note, for a placeholder, for what looks like a secret, and for what the schema refuses."""
        fault = None
        if isinstance(value, str) and PLACEHOLDER.search(value):
            fault = "it is a placeholder"
        elif not is_printable(str(value)) or looks_secret(str(value), key):
            fault = "it looks like a secret or cannot be printed"
        try:
            restore(SlurmSection, {key: value})
        except InputError as error:
            fault = fault or f"the rule: {error.problems[0].rule}"
        if fault:
            self.notes.append(f"launcher.slurm.{key} of {origin}: a value was left out; {fault}.")
        return fault is None

    def keep_container(self, origin: str, runtime: str, image: str, mounts: str, **others: Any) -> None:
        """Keep a container. A path alone among the mounts is mounted at itself, a placeholder left out."""
        given = [mount for mount in mounts.split(",") if mount]
        known = [mount if ":" in mount else f"{mount}:{mount}" for mount in given if not PLACEHOLDER.search(mount)]
        self.unread += [f"a mount of {runtime}"] * (len(known) < len(given))
        section = {"runtime": runtime, "image": image, "mounts": known, **others}
        self.keep("container", {key: value for key, value in section.items() if value}, origin)

    def in_order(self) -> dict[str, Any]:
        """The keys in the order of the schema."""
        return {name: self.keys[name] for name in SlurmSection.model_fields if name in self.keys}


def read_launch_lines(given: Given, commands: Commands, exported: Mapping[str, str]) -> Section:
    """The keys of launcher.slurm that commands and exported variables give. The options of the step go to the job's."""
    found = Section()
    _step(found, given, commands)
    _modules(found, commands)
    for line, words in commands:
        _container(found, words, line)
    if lines := ", ".join(str(line) for line, words in commands if _is_set_up(words)):
        found.unread.append(f"the set-up of line {lines} (launcher.slurm.setup_file takes a file with it)")
    own = {name: value for name, value in exported.items() if not _NEEDLESS.fullmatch(name)}
    found.keep("env", {name: value for name, value in own.items() if _is_for_speed(name, value)}, "export")
    if others := [name for name in own if name not in found.keys.get("env", ())]:
        where = "Add those that matter to speed to launcher.slurm.env or space.env."
        found.notes.append(f"Exported variables that trials do not get: {listed(others)}. {where}")
    return found


def _step(found: Section, given: Given, commands: Commands) -> None:
    """Add the options of the srun that starts the training: the longest, as others list nodes and find addresses."""
    steps = [(line, words[words.index("srun") + 1 :]) for line, words in commands if "srun" in words[:3]]
    if not steps:
        return
    found.has_step = True
    line, words = max(steps, key=lambda step: sum(map(len, step[1])))
    nodes = given.values.get("nodes")
    given.add(deque(words), "srun", line)
    by_srun = [name for name, origin in given.origins.items() if origin.startswith("srun")]
    if "ntasks" in by_srun and "ntasks-per-node" not in by_srun:
        given.values.pop("ntasks-per-node", None)
    if nodes and (part := given.values["nodes"]) != nodes:
        found.notes.append(f"srun --nodes is {part}, as the command starts its ranks; the job has {nodes}.")


def _is_set_up(words: Sequence[str]) -> bool:
    return words[0] in ("source", ".") or " ".join(words[:2]) in ("conda activate", "micromamba activate", "module use")


_CLEAR, _UNLOAD, _SWAP = ("purge", "reset"), ("unload", "rm", "del"), ("swap", "switch")
_LOAD = ("load", "add", "try-load", *_SWAP)
_QUERIES = ("use", "list", "avail", "av", "show", "spider", "help", "whatis", "restore", "save", "refresh", "unuse")


def _modules(found: Section, commands: Commands) -> None:
    """Modules that are loaded in the end. `ml a` is `module load a`."""
    loaded: dict[str, int] = {}
    for line, words in commands:
        names = [word for word in words[1:] if not word.startswith("-")]
        if words[0] not in ("module", "ml") or not names:
            continue
        is_load = words[0] == "ml" and names[0] not in (*_CLEAR, *_UNLOAD, *_LOAD, *_QUERIES)
        action = "load" if is_load else names.pop(0)
        if action in _CLEAR:
            loaded.clear()
        gone = {*names} if action in _UNLOAD else {*names[:-1]} if action in _SWAP else {*()}
        loaded = {name: at for name, at in loaded.items() if gone.isdisjoint((name, name.split("/")[0]))}
        if action in _LOAD:
            loaded |= dict.fromkeys(names[-1:] if action in _SWAP else names, line)
    lines = ", ".join(map(str, dict.fromkeys(loaded.values())))
    found.keep("modules", list(loaded), f"module load (line {lines})")


_FLAGS = ("nv", "rocm", "writable", "writable-tmpfs", "cleanenv", "contain", "containall", "fakeroot", *"eCcfpu")
"""Options of apptainer without a value."""


def _container(found: Section, words: Sequence[str], line: int) -> None:
    """The image that apptainer or shifter starts in this command."""
    programs = [word.rpartition("/")[2].replace("singularity", "apptainer") for word in words]
    runtime = next((program for program in programs if program in ("apptainer", "shifter")), "")
    rest = deque(words[programs.index(runtime) + 1 :] if runtime else ())
    if runtime == "apptainer" and (not rest or rest.popleft() not in ("exec", "run")):
        return
    options = [*options_of(rest, _FLAGS)]
    names = {name for name, _ in options}
    images = [*rest] if runtime == "apptainer" else [value for name, value in options if name in ("image", "i")]
    if not images or not re.search(r"[/.:$]", images[0]):
        return
    mounts = ",".join(value.replace(";", ",") for name, value in options if name in ("B", "bind", "V", "volume"))
    gpus = next((name for name in ("nv", "rocm") if name in names), None)
    origin, writable = f"{runtime} (line {line})", "writable" in names
    found.keep_container(origin, runtime, images[0], mounts, writable=writable, gpus=gpus)
    read = ("B", "bind", "V", "volume", "image", "i", "writable", "nv", "rocm")
    found.unread += [f"{hyphened(name)} of {runtime}" for name, _ in options if name not in read]


_FOR_SPEED = re.compile(
    r"(NCCL|UCX|FI|RCCL|HSA|MIOPEN|TORCH_NCCL)_\w+|OMP_NUM_THREADS|PYTORCH_((CUDA|HIP)_)?ALLOC_CONF"
)
_NEEDLESS = re.compile(r"CUDA_DEVICE_MAX_CONNECTIONS|NCCL_DEBUG\w*|CUDA_VISIBLE_DEVICES|" + "|".join(RANK_NAMES))
"""Variables that Parlay sets itself, or that only change what is logged."""


def _is_for_speed(name: str, value: str) -> bool:
    is_plain = is_printable(value) and not re.search(r"[$`]", value) and not looks_secret(value, name)
    return bool(value and is_plain and _FOR_SPEED.fullmatch(name))
