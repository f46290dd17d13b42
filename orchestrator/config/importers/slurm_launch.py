"""Keys of launcher.slurm, and those that a script's commands give: modules, container, variables. Pure."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config.importers.bash.script import Word
from orchestrator.config.importers.slurm_options import hyphened, options_of
from orchestrator.config.schema.slurm import SlurmSection
from search_spaces.errors import InputError
from search_spaces.schema.unsafe_text import is_printable, looks_secret
from search_spaces.schema.validation import FILL_IN, restore
from slurm.environment import RANK_NAMES

Commands = Sequence[Sequence[Word]]


@dataclass
class SlurmKeys:
    """Keys of launcher.slurm with where they stand (`origins`, by the key's whole path), and what was left out: options
    by name (`unread`), and sentences (`notes`)."""

    keys: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def keep(self, key: str, value: Any, origin: str) -> None:
        """Keep this value of a key. A note asks for what is not known, and says what looks like a secret and what the
        schema refuses."""
        fault = None
        if not is_printable(str(value)) or looks_secret(str(value), key):
            fault = "it looks like a secret or cannot be printed"
        elif FILL_IN in str(value):
            self.notes.append(f"launcher.slurm.{key} of {origin} is not known: fill it in.")
        else:
            try:
                restore(SlurmSection, {key: value})
            except InputError as error:
                fault = f"the rule: {error.problems[0].rule}"
        if fault:
            self.notes.append(f"launcher.slurm.{key} of {origin} was left out; {fault}.")
        elif value:
            self.keys[key], self.origins[f"launcher.slurm.{key}"] = value, origin

    def keep_container(self, origin: str, runtime: str, image: str, mounts: str, **others: Any) -> None:
        """Keep a container. A path alone among the mounts is mounted at itself."""
        given = [mount for mount in mounts.split(",") if mount]
        known = [mount if ":" in mount or mount == FILL_IN else f"{mount}:{mount}" for mount in given]
        section = {"runtime": runtime, "image": image, "mounts": known, **others}
        self.keep("container", {key: value for key, value in section.items() if value}, origin)


def read_commands(found: SlurmKeys, commands: Commands) -> None:
    """Add the modules and the container that these commands give, and name what else prepares a job."""
    loaded: dict[str, int] = {}
    for program, *words in commands:
        if program.text in ("module", "ml") and words:
            is_read = _load(loaded, program, words)
        else:
            is_read = " ".join((program.text, *(word.text for word in words[:1]))) not in _ACTIVATE
            _container(found, [program, *words])
        if not is_read:
            found.unread.append(f"the set-up of line {program.line} (launcher.slurm.setup_file takes a file with it)")
    lines = ", ".join(map(str, dict.fromkeys(loaded.values())))
    found.keep("modules", list(loaded), f"module load (line {lines})")


_ACTIVATE = ("conda activate", "micromamba activate")
_LOAD, _CLEAR, _SHOW = ("load", "add", "try-load"), ("purge", "reset"), ("list", "avail", "av", "show", "spider")
_OTHERS = ("unload", "rm", "del", "swap", "switch", "use", "unuse", "restore", "save", "refresh", "help", "whatis")


def _load(loaded: dict[str, int], program: Word, words: Sequence[Word]) -> bool:
    """Load these modules, or drop all. `ml a` is `module load a`. False for what changes them otherwise."""
    names = [FILL_IN if word.doubt else word.text for word in words if not word.text.startswith("-")]
    is_action = program.text == "module" or (names and names[0] in (*_LOAD, *_CLEAR, *_SHOW, *_OTHERS))
    action = names.pop(0) if is_action and names else "load"
    if action in _CLEAR:
        loaded.clear()
    elif action in _LOAD:
        loaded |= dict.fromkeys(names, program.line)
    return action in (*_LOAD, *_CLEAR, *_SHOW)


_FLAGS = ("nv", "rocm", "writable", "writable-tmpfs", "cleanenv", "contain", "containall", "fakeroot", *"eCcfpu")
"""Options of apptainer without a value."""
_READ = ("B", "bind", "writable", "nv", "rocm")
_OTHER_RUNTIMES = ("shifter", "docker", "podman", "podman-hpc", "enroot", "sarus")


def _container(found: SlurmKeys, words: Sequence[Word]) -> None:
    """The image that apptainer starts in this command. Another runtime is named."""
    programs = [word.text.rpartition("/")[2].replace("singularity", "apptainer") for word in words]
    found.unread += [f"{name} (line {words[0].line})" for name in _OTHER_RUNTIMES if name in programs]
    rest = deque(words[programs.index("apptainer") + 1 :] if "apptainer" in programs else ())
    if not rest or rest.popleft().text not in ("exec", "run"):
        return
    options = [*options_of(rest, _FLAGS)]
    if not rest:
        return
    names = {name for name, _ in options}
    mounts = ",".join(value for name, value in options if name in ("B", "bind"))
    gpus = next((name for name in ("nv", "rocm") if name in names), None)
    image = FILL_IN if rest[0].doubt else rest[0].text
    origin = f"apptainer (line {words[0].line})"
    found.keep_container(origin, "apptainer", image, mounts, writable="writable" in names, gpus=gpus)
    found.unread += [f"{hyphened(name)} of apptainer" for name, _ in options if name not in _READ]


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
