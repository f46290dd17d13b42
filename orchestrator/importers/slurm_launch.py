"""Keys of launcher.slurm, and those that a script's commands give: modules, container, variables. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.bash.script import Word
from orchestrator.importers.slurm_options import hyphened, options_of
from orchestrator.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import is_printable, looks_secret
from search_spaces.schema.validation import FILL_IN, restore
from slurm.environment import RANK_NAMES

Commands = Sequence[Sequence[Word]]


@dataclass
class Section:
    """Keys of launcher.slurm with where they stand (`origins`, by the key's whole path), and what was left out: options
    by name (`unread`), and sentences (`notes`)."""

    keys: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def keep(self, key: str, value: Any, origin: str) -> None:
        """Keep this value of a key, or what the section takes of its entries; a note asks for what is not known."""
        if isinstance(value, list):
            value = [entry for entry in value if self._takes(key, [entry], origin)]
        elif not self._takes(key, value, origin):
            return
        if value:
            self.keys[key], self.origins[f"launcher.slurm.{key}"] = value, origin
        if FILL_IN in str(value):
            self.notes.append(f"launcher.slurm.{key} of {origin} is not known: fill it in.")

    def _takes(self, key: str, value: Any, origin: str) -> bool:
        """False, with a note, for what looks like a secret, and for what the schema refuses."""
        fault = None
        if not is_printable(str(value)) or looks_secret(str(value), key):
            fault = "it looks like a secret or cannot be printed"
        elif FILL_IN not in str(value):
            try:
                restore(SlurmSection, {key: value})
            except InputError as error:
                fault = f"the rule: {error.problems[0].rule}"
        if fault:
            self.notes.append(f"launcher.slurm.{key} of {origin}: a value was left out; {fault}.")
        return fault is None

    def keep_container(self, origin: str, runtime: str, image: str, mounts: str, **others: Any) -> None:
        """Keep a container. A path alone among the mounts is mounted at itself."""
        given = [mount for mount in mounts.split(",") if mount]
        known = [mount if ":" in mount or mount == FILL_IN else f"{mount}:{mount}" for mount in given]
        section = {"runtime": runtime, "image": image, "mounts": known, **others}
        self.keep("container", {key: value for key, value in section.items() if value}, origin)


def read_commands(found: Section, commands: Commands) -> None:
    """Add the modules and the container that these commands give."""
    _modules(found, commands)
    for words in commands:
        _container(found, words)
    if lines := ", ".join(str(words[0].line) for words in commands if _is_set_up(words)):
        found.unread.append(f"the set-up of line {lines} (launcher.slurm.setup_file takes a file with it)")


def _is_set_up(words: Sequence[Word]) -> bool:
    return " ".join(word.text for word in words[:2]) in ("conda activate", "micromamba activate", "module use")


_CLEAR, _UNLOAD, _SWAP = ("purge", "reset"), ("unload", "rm", "del"), ("swap", "switch")
_LOAD = ("load", "add", "try-load", *_SWAP)
_QUERIES = ("use", "list", "avail", "av", "show", "spider", "help", "whatis", "restore", "save", "refresh", "unuse")


def _modules(found: Section, commands: Commands) -> None:
    """Modules that are loaded in the end. `ml a` is `module load a`."""
    loaded: dict[str, int] = {}
    for program, *words in commands:
        names = [FILL_IN if word.doubt else word.text for word in words if not word.text.startswith("-")]
        if program.text not in ("module", "ml") or not names:
            continue
        is_load = program.text == "ml" and names[0] not in (*_CLEAR, *_UNLOAD, *_LOAD, *_QUERIES)
        action = "load" if is_load else names.pop(0)
        if action in _CLEAR:
            loaded.clear()
        gone = {*names} if action in _UNLOAD else {*names[:-1]} if action in _SWAP else {*()}
        loaded = {name: at for name, at in loaded.items() if gone.isdisjoint((name, name.split("/")[0]))}
        if action in _LOAD:
            loaded |= dict.fromkeys(names[-1:] if action in _SWAP else names, program.line)
    lines = ", ".join(map(str, dict.fromkeys(loaded.values())))
    found.keep("modules", list(loaded), f"module load (line {lines})")


_FLAGS = ("nv", "rocm", "writable", "writable-tmpfs", "cleanenv", "contain", "containall", "fakeroot", *"eCcfpu")
"""Options of apptainer without a value."""
_MOUNTS, _IMAGE = ("B", "bind", "V", "volume"), ("image", "i")


def _container(found: Section, words: Sequence[Word]) -> None:
    """The image that apptainer or shifter starts in this command."""
    programs = [word.text.rpartition("/")[2].replace("singularity", "apptainer") for word in words]
    runtime = next((program for program in programs if program in ("apptainer", "shifter")), "")
    rest = deque(words[programs.index(runtime) + 1 :] if runtime else ())
    if runtime == "apptainer" and (not rest or rest.popleft().text not in ("exec", "run")):
        return
    options = [*options_of(rest, _FLAGS)]
    names = {name for name, _ in options}
    image = next((value for name, value in options if name in _IMAGE), None)
    if runtime == "apptainer" and rest:
        image = FILL_IN if rest[0].doubt else rest[0].text
    if image is None:
        return
    mounts = ",".join(value.replace(";", ",") for name, value in options if name in _MOUNTS)
    gpus = next((name for name in ("nv", "rocm") if name in names), None)
    origin = f"{runtime} (line {words[0].line})"
    found.keep_container(origin, runtime, image, mounts, writable="writable" in names, gpus=gpus)
    read = (*_MOUNTS, *_IMAGE, "writable", "nv", "rocm")
    found.unread += [f"{hyphened(name)} of {runtime}" for name, _ in options if name not in read]


_FOR_SPEED = re.compile(
    r"(NCCL|UCX|FI|RCCL|HSA|MIOPEN|TORCH_NCCL)_\w+|OMP_NUM_THREADS|PYTORCH_((CUDA|HIP)_)?ALLOC_CONF"
)
SET_FOR_TRIALS = re.compile(r"CUDA_DEVICE_MAX_CONNECTIONS|NCCL_DEBUG\w*|CUDA_VISIBLE_DEVICES|" + "|".join(RANK_NAMES))
"""Variables that Parlay sets itself, or that only change what is logged."""


def variables_for_speed(exported: Mapping[str, str]) -> dict[str, str]:
    """The exported variables that each trial gets."""
    return {name: value for name, value in exported.items() if _is_for_speed(name, value)}


def _is_for_speed(name: str, value: str) -> bool:
    is_plain = is_printable(value) and not looks_secret(value, name)
    return bool(value and is_plain and _FOR_SPEED.fullmatch(name) and not SET_FOR_TRIALS.fullmatch(name))
