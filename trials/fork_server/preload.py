"""Imports of a server, and the checks that it may be forked after them. Imports torch, inside its function only."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

from trials.ranks.environment import prepare_imports
from trials.trainers.base import PRELOADS

DEVICE_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


class CannotFork(Exception):
    """This process cannot be forked after its imports; the message is the reason."""


def import_all(preload: str) -> None:
    """Import what a rank of this preload imports, after the settings that count before that. Raises CannotFork."""
    if preload not in PRELOADS:
        raise CannotFork(f"there is no preload {preload!r:.80}, only {', '.join(PRELOADS)}")
    engine, _, device = preload.partition("/")
    prepare_imports(engine, device == "cpu", os.environ)
    try:
        from trials.train.preload import import_engine

        import_engine(engine, device == "cpu")
    except Exception as error:
        raise CannotFork(f"the import failed: {type(error).__name__}: {error}") from error


def require_forkable() -> None:
    """Raise CannotFork unless this process has one thread and no device.

    A fork has one thread only, and locks that others hold stay locked. A driver's context does not survive a fork.
    """
    # OpenBLAS, which numpy brings, ends its threads before a fork and starts them again when they are next needed.
    # Other libraries' threads stay and are counted.
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if threads := _threads()[1:]:
        raise CannotFork(f"an import has started {len(threads)} threads: {', '.join(threads)}")
    if devices := _open_devices():
        raise CannotFork(f"an import has opened {', '.join(devices)}")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise CannotFork("an import has initialized CUDA")


def freeze() -> None:
    """Keep the collector from the imported objects, whose pages a rank would otherwise copy."""
    gc.collect()
    gc.freeze()


def _threads() -> list[str]:
    """Names of this process's threads, the main one first."""
    tasks = sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    return [(task / "comm").read_text().strip() for task in tasks]


def _open_devices() -> list[str]:
    """Device files of accelerators that this process has open."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path.startswith(DEVICE_FILES))
