"""Equality of a request to its server: a rank is forked only where nothing but its place would tell it from a plain
start. Standard library only."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trials.fork_server.stub import surroundings

PROGRAM = "trials.train"
"""The only program whose ranks are forked."""
PRELOAD_VARIABLE = "PARLAY_PRELOAD"
"""Environment variable: name of the preload that the rank's launcher chose for its layout."""

SAFE_VARIABLES: Mapping[str, str] = {
    **dict.fromkeys(
        ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "the rank's place, read when the ranks meet",
    ),
    **dict.fromkeys(
        (
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ZE_AFFINITY_MASK",
            "GPU_DEVICE_ORDINAL",
        ),
        "read by the driver when a process opens its first device, which a server has not done",
    ),
    **dict.fromkeys(
        ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TRITON_CACHE_DIR"),
        "a cache's folder, read when a kernel is first compiled",
    ),
    **dict.fromkeys(("PWD", "OLDPWD", "SHLVL", "_"), "a shell's own notes, read by shells"),
}
"""Environment variables that may differ from the server's, each with the reason. A test records what is read while the
modules of a rank are imported."""
SAFE_PREFIXES: Mapping[str, str] = {
    "PARLAY_": "Parlay's own, read by the rank's program",
    "SLURM_": "the step's numbers, read by the rank's program",
    "SRUN_": "the step's options, read by srun",
    **dict.fromkeys(("PMI_", "PMI2_", "PMIX_"), "the step's process manager, read by an MPI library when it starts"),
}

CONTAINER_VARIABLE = "PARLAY_CONTAINER"
"""Environment variable: identifies image and options of the rank's container, where it has one."""
_OF_THE_CONTAINER = ("mnt", "user")
"""Namespaces that each start of a container makes anew."""


@dataclass(frozen=True)
class Request:
    """A rank to fork, as its stub describes it; text of the operating system is in bytes."""

    argv: tuple[bytes, ...]
    directory: bytes
    environment: Mapping[bytes, bytes]
    umask: int
    affinity: frozenset[int]
    ignored: tuple[int, ...]
    blocked: tuple[int, ...]
    surroundings: Mapping[str, Any]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Request:
        """Raises KeyError, TypeError, ValueError for anything but a request."""
        return cls(
            argv=tuple(map(_bytes, data["argv"])),
            directory=_bytes(data["directory"]),
            environment={_bytes(name): _bytes(value) for name, value in data["environment"].items()},
            umask=int(data["umask"]),
            affinity=frozenset(map(int, data["affinity"])),
            ignored=tuple(map(int, data["ignored"])),
            blocked=tuple(map(int, data["blocked"])),
            surroundings={name: data[name] for name in surroundings()},
        )


@dataclass(frozen=True)
class Identity:
    """All of a server in which a request must equal it. `environment` is that of its own start, before any import."""

    preload: str
    interpreter: str
    environment: Mapping[bytes, bytes]
    affinity: frozenset[int]
    surroundings: Mapping[str, Any]

    @classmethod
    def of_this_process(cls, preload: str) -> Identity:
        return cls(
            preload=preload,
            interpreter=os.path.abspath(sys.executable),
            environment=initial_environment(),
            affinity=frozenset(os.sched_getaffinity(0)),
            surroundings=surroundings(),
        )


def initial_environment() -> dict[bytes, bytes]:
    """The environment with which this process was executed: Python's start may have added to it."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    return {name: value for name, found, value in (entry.partition(b"=") for entry in entries) if found}


def difference(request: Request, server: Identity) -> str | None:
    """The first thing in which the request differs from the server, without its value; None where it is equal."""
    return next(_differences(request, server), None)


def _differences(request: Request, server: Identity) -> Iterator[str]:
    if request.argv[1:3] != (b"-m", PROGRAM.encode()) or len(request.argv) != 4:
        yield f"it forks ranks of python -m {PROGRAM} SPEC only"
        return
    wanted = request.environment.get(PRELOAD_VARIABLE.encode(), b"")
    if wanted != server.preload.encode():
        yield f"it has imported {server.preload}, the rank needs {os.fsdecode(wanted) or 'another program'}"
    if not _is_same_interpreter(request, server.interpreter):
        yield "the rank's interpreter is another one"
    for name in _differing_variables(request.environment, server.environment):
        yield f"the environment variable {name} differs"
    theirs, ours = request.surroundings, server.surroundings
    if _are_of_one_container(request.environment, server.environment):
        theirs, ours = _without_container(theirs), _without_container(ours)
    for name, value in ours.items():
        if theirs[name] != value:
            yield f"{_WORDS[name]} differ{_which(value, theirs[name])}"
    if not request.affinity <= server.affinity:
        yield "the rank may run on cores on which the server may not"


_WORDS = {
    "limits": "the resource limits",
    "namespaces": "the namespaces (the container)",
    "root": "the root folders",
    "user": "the users or groups",
    "nice": "the priorities",
    "devices": "the accelerators that may be opened",
}


def _are_of_one_container(theirs: Mapping[bytes, bytes], ours: Mapping[bytes, bytes]) -> bool:
    """True where the launcher started both in a container of the same image and options."""
    name = CONTAINER_VARIABLE.encode()
    return bool(ours.get(name)) and theirs.get(name) == ours.get(name)


def _without_container(surroundings: Mapping[str, Any]) -> dict[str, Any]:
    """The surroundings without what two starts of one container differ in."""
    namespaces = {name: link for name, link in surroundings["namespaces"].items() if name not in _OF_THE_CONTAINER}
    return {**surroundings, "namespaces": namespaces, "root": None}


def _which(ours: Any, theirs: Any) -> str:
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return ""
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return f": {', '.join(names)}"


def _is_same_interpreter(request: Request, interpreter: str) -> bool:
    """True for the same path and the same file: one path of another environment may lead to the same file."""
    search_path = os.fsdecode(request.environment.get(b"PATH", b""))
    found = shutil.which(os.fsdecode(request.argv[0]), path=search_path or None)
    return found is not None and os.path.abspath(found) == interpreter


def _differing_variables(theirs: Mapping[bytes, bytes], ours: Mapping[bytes, bytes]) -> Sequence[str]:
    names = sorted(name for name in {*theirs, *ours} if theirs.get(name) != ours.get(name))
    return [text for name in names if not is_safe(text := os.fsdecode(name))]


def is_safe(name: str) -> bool:
    """True for a variable that may differ."""
    return name in SAFE_VARIABLES or name.startswith(tuple(SAFE_PREFIXES))


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")
