"""What a job left in its attempt's folder, as far as its file system shows it."""

from __future__ import annotations

import os
from pathlib import Path

from slurm.script import last_run
from trials.files.folders import AttemptFolder, read_json
from trials.files.text import tail
from trials.files.tracebacks import first_cause

LOG_LINES = 40


def may_exist(path: Path) -> bool:
    """Whether the file is there, or its file system does not say: then a doubt is the safer answer."""
    try:
        return path.exists()
    except OSError:
        return True


def last_restart(folder: AttemptFolder) -> int:
    """How often the job was requeued, as its own files tell: accounting does not say it."""
    try:
        return folder.last_restart()
    except OSError:
        return 0


def has_outcome(folder: AttemptFolder, restart: int) -> bool:
    """Whether a whole outcome lies there. The folder is listed first: network file systems look again only then."""
    try:
        with os.scandir(folder.path) as entries:
            names = {entry.name for entry in entries}
        return folder.outcome(restart).name in names and read_json(folder.outcome(restart)) is not None
    except (OSError, ValueError):
        return False


def failure_excerpt(folder: AttemptFolder, message: str, log: str) -> str:
    """Slurm's words, and the first real traceback over all ranks, or the end of the job's own log; of its last run."""
    logs = (log_tail(path, 400) for path in folder.rank_logs())
    return "\n".join(part for part in (message, first_cause(logs) or log) if part)


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log that are of the job's last run; "" where it cannot be read."""
    try:
        return last_run(tail(path, lines))
    except OSError:
        return ""
