"""Equality of a request to its server: a rank is forked only where nothing but its place would tell it from a plain
start. Standard library only."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from typing import Any

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
_WORDS = {
    "limits": "the resource limits",
    "namespaces": "the namespaces (the container)",
    "root": "the root folders",
    "user": "the users or groups",
    "nice": "the priorities",
    "devices": "the accelerators that may be opened",
}


def difference(request: Mapping[str, Any], server: Mapping[str, Any], preload: str) -> str | None:
    """Return the first thing in which a request differs from its server, without its value; None where it is equal.

    Both are descriptions of a process (`stub.describe`), the server's of its own start, before any import.
    """
    return next(_differences(request, server, preload), None)


def _differences(request: Mapping[str, Any], server: Mapping[str, Any], preload: str) -> Iterator[str]:
    theirs, ours = request["environment"], server["environment"]
    if request["argv"][1:3] != ["-m", PROGRAM] or len(request["argv"]) != 4:
        yield f"it forks ranks of python -m {PROGRAM} SPEC only"
    if (wanted := theirs.get(PRELOAD_VARIABLE)) != preload:
        yield f"it has imported {preload}, the rank needs {wanted or 'another program'}"
    if not _is_same_interpreter(request["argv"][0], theirs.get("PATH", "")):
        yield "the rank's interpreter is another one"
    for name in sorted({*theirs, *ours}):
        if theirs.get(name) != ours.get(name) and not is_safe(name):
            yield f"the environment variable {name} differs"
    container = theirs.get(CONTAINER_VARIABLE)
    if container and container == ours.get(CONTAINER_VARIABLE):
        request, server = _without_container(request), _without_container(server)
    for name, words in _WORDS.items():
        if request[name] != server[name]:
            yield f"{words} differ{_which(server[name], request[name])}"
    if not set(request["affinity"]) <= set(server["affinity"]):
        yield "the rank may run on cores on which the server may not"


def _without_container(process: Mapping[str, Any]) -> dict[str, Any]:
    """The description without what two starts of one container differ in."""
    namespaces = {name: link for name, link in process["namespaces"].items() if name not in _OF_THE_CONTAINER}
    return {**process, "namespaces": namespaces, "root": None}


def _which(ours: Any, theirs: Any) -> str:
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return ""
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return f": {', '.join(names)}"


def _is_same_interpreter(python: str, search_path: str) -> bool:
    """True for the same path and the same file: one path of another environment may lead to the same file."""
    found = shutil.which(native(python), path=native(search_path) or None)
    return found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)


def native(text: str) -> str:
    """Text of a description as Python has it in this process."""
    return os.fsdecode(text.encode("latin-1"))


def is_safe(name: str) -> bool:
    """True for a variable that may differ."""
    return name in SAFE_VARIABLES or name.startswith(tuple(SAFE_PREFIXES))
