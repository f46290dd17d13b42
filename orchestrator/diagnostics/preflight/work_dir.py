"""Checks of work_dir, setup file and container files, before anything is written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from search_spaces.errors import InputError
from search_spaces.plain_file import open_named
from slurm.request import Container
from trials.files.folders import SearchFolder
from trials.files.path_owners import require_trusted_path

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec

WORK_DIR_FIX = "name a folder that you may write to"
_READ_OF_SETUP = 2**20
_LONGEST_WORK_DIR = 3800  # leaves room for a search's own paths within Linux's PATH_MAX


def require_directories(spec: SearchSpec) -> None:
    """InputError if the search's folder cannot be created, or setup or container files do not exist."""
    _require_work_dir(spec.work_dir)
    if spec.launcher.uses_slurm:
        container = spec.launcher.slurm.job_options().container
        _require_slurm_work_dir(spec.work_dir, has_mounts=container is not None and container.runtime is not None)
        _require_setup_file(spec.launcher.slurm.setup_file)
        if container is not None:
            _require_container_files(container)


def _require_work_dir(path: Path) -> None:
    """InputError if no search can be created in `path`, which need not exist yet."""
    if len(str(path)) > _LONGEST_WORK_DIR:
        raise work_dir_error(path, f"has {len(str(path))} characters, at most {_LONGEST_WORK_DIR} fit", WORK_DIR_FIX)
    try:
        inside = next((p for p in (path, *path.parents) if SearchFolder(p).exists), None)
        nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
        mode = nearest.stat().st_mode
        require_trusted_path(path, "work_dir", "work_dir")
    except OSError as error:
        raise work_dir_error(path, error.strerror or str(error), WORK_DIR_FIX) from error
    if inside is not None:
        raise work_dir_error(path, f"is inside the search {inside.name}", "name a folder outside of any search")
    if not stat.S_ISDIR(mode):
        raise work_dir_error(path, f"cannot be created: {nearest} is not a folder", WORK_DIR_FIX)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise work_dir_error(path, f"cannot be written at {nearest}", WORK_DIR_FIX)


def _require_slurm_work_dir(path: Path, has_mounts: bool) -> None:
    """InputError for a path with Slurm's filename patterns: %j in the path of job.log becomes the job's id.

    With a container also for characters that separate the parts of a mount.
    """
    if found := [sign for sign in "%\\" if sign in str(path)]:
        fix = "name a folder without it" if len(found) == 1 else "name a folder without them"
        raise work_dir_error(path, f"has {' and '.join(found)}, which Slurm reads as a pattern in a log's path", fix)
    if has_mounts and any(sign in ":," or sign.isspace() for sign in str(path)):
        raise work_dir_error(path, "contains a blank, : or , and is mounted in a container", "name one without them")


def _require_setup_file(path: str | None) -> None:
    """InputError for a missing setup file: every job would go on without it and fail later."""
    try:
        is_file = path is None or stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        is_file = False
    except OSError:  # this machine cannot tell
        is_file = True
    if not is_file:
        raise InputError.of(
            "setup_file",
            f"{path} is not a file on this machine",
            rule="setup_file is on a file system that this machine and the compute nodes share",
            fix="name one there; it may source another that only the compute nodes have",
            key="launcher.slurm.setup_file",
            value=path,
        )
    if path is not None and _has_windows_line_ends(Path(path)):
        raise InputError.of(
            "setup_file",
            f"{path} has Windows line ends",
            rule="a shell reads the carriage return as part of the line's last word",
            fix="save it with Unix line ends (dos2unix)",
            key="launcher.slurm.setup_file",
            value=path,
        )


def _has_windows_line_ends(path: Path) -> bool:
    try:
        with open_named(path) as stream:
            return b"\r\n" in stream.read(_READ_OF_SETUP)
    except OSError:  # this machine cannot tell
        return False


def _require_container_files(container: Container) -> None:
    """InputError for a missing image file or mount source, without which no rank would start."""
    image, mounts = container.image, enumerate(container.mounts)
    wanted = [("image", image)] if image is not None and image.startswith("/") else []
    for key, path in [*wanted, *((f"mounts[{place}]", mount.partition(":")[0]) for place, mount in mounts)]:
        if _is_missing(path):
            raise InputError.of(
                "container",
                f"{path} does not exist on this machine",
                rule="image and mounts are on a file system that this machine and the compute nodes share",
                fix="correct the path; for files of the compute nodes write the container as a list of words",
                key=f"launcher.slurm.container.{key}",
                value=path,
            )


def _is_missing(path: str) -> bool:
    """True if the path certainly does not exist on this machine."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def work_dir_error(path: Path, message: str, fix: str) -> InputError:
    rule = "work_dir exists or can be created, is writable for you and not for everybody, and is in no other search"
    return InputError.of("work_dir", f"{path} {message}", key="work_dir", value=str(path), rule=rule, fix=fix)
