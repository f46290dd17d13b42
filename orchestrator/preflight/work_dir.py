"""Where searches get their folders, and what their jobs read first: looked at before anything is written."""

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
_LONGEST_WORK_DIR = 3800  # with a search's own paths below it, within what Linux takes


def require_directories(spec: SearchSpec) -> None:
    """InputError unless the search's jobs can get their folders, and find their setup file."""
    _require_work_dir(spec.work_dir)
    if spec.launcher.uses_slurm:
        container = spec.launcher.slurm.job_options().container
        _require_slurm_work_dir(spec.work_dir, has_mounts=container is not None and container.runtime is not None)
        _require_setup_file(spec.launcher.slurm.setup_file)
        if container is not None:
            _require_container_files(container)


def _require_work_dir(path: Path) -> None:
    """InputError unless searches can get their folders in `path`; it is made when the first one does."""
    if len(str(path)) > _LONGEST_WORK_DIR:
        raise work_dir_error(path, f"has {len(str(path))} characters, {_LONGEST_WORK_DIR} are the most", WORK_DIR_FIX)
    try:
        inside = next((p for p in (path, *path.parents) if SearchFolder(p).exists), None)
        nearest = next(p for p in (path, *path.parents) if os.path.lexists(p))
        mode = nearest.stat().st_mode
        require_trusted_path(path, "work_dir", "work_dir")
    except OSError as error:
        raise work_dir_error(path, error.strerror or str(error), WORK_DIR_FIX) from error
    if inside is not None:
        raise work_dir_error(path, f"lies inside the search {inside.name}", "name a folder outside of any search")
    if not stat.S_ISDIR(mode):
        raise work_dir_error(path, f"cannot be made: {nearest} is not a folder", WORK_DIR_FIX)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise work_dir_error(path, f"cannot be written at {nearest}", WORK_DIR_FIX)


def _require_slurm_work_dir(path: Path, has_mounts: bool) -> None:
    """InputError for a path in which Slurm would read patterns: %j in the folder of job.log becomes the job's id.

    One that a container is to see has no sign either that ends the path of a mount.
    """
    if found := [sign for sign in "%\\" if sign in str(path)]:
        fix = "name a folder without it" if len(found) == 1 else "name a folder without them"
        raise work_dir_error(path, f"has {' and '.join(found)}, which Slurm reads as a pattern in a log's path", fix)
    if has_mounts and any(sign in ":," or sign.isspace() for sign in str(path)):
        raise work_dir_error(path, "has a blank, : or , in it, and a container is to see it", "name one without them")


def _require_setup_file(path: str | None) -> None:
    """InputError for a file that is not there: every job would go on without it, and fail for another reason."""
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
            rule="setup_file lies where this machine and the compute nodes see it",
            fix="name one that does; it may source another that only the compute nodes have",
            key="launcher.slurm.setup_file",
            value=path,
        )
    if path is not None and _has_windows_line_ends(Path(path)):
        raise InputError.of(
            "setup_file",
            f"{path} has Windows line ends",
            rule="a shell takes the carriage return for a part of the line's last word",
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
    """InputError for an image, or a source of a mount, that is not there: no rank would ever start."""
    image, mounts = container.image, enumerate(container.mounts)
    wanted = [("image", image)] if image is not None and image.startswith("/") else []
    for key, path in [*wanted, *((f"mounts[{place}]", mount.partition(":")[0]) for place, mount in mounts)]:
        if _is_missing(path):
            raise InputError.of(
                "container",
                f"{path} is not there on this machine",
                rule="image and mounts lie where this machine and the compute nodes see them",
                fix="correct the path; what only compute nodes have is named in a container that is a list of words",
                key=f"launcher.slurm.container.{key}",
                value=path,
            )


def _is_missing(path: str) -> bool:
    """Whether nothing is there, as far as this machine can tell."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def work_dir_error(path: Path, message: str, fix: str) -> InputError:
    rule = "searches lie in a folder that exists or can be made, of yours to write and not everybody's, in no search"
    return InputError.of("work_dir", f"{path} {message}", key="work_dir", value=str(path), rule=rule, fix=fix)
