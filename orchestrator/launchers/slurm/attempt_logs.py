"""Logs and outcomes in an attempt's folder, as far as its file system shows them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from slurm.script import last_run, restarts_in
from trials.files.folders import AttemptFolder, read_json
from trials.files.text import tail
from trials.files.tracebacks import first_cause

LOG_LINES = 40


def may_exist(path: Path) -> bool:
    """True if the file exists, or if its file system does not answer: then it has to be assumed."""
    try:
        return path.exists()
    except OSError:
        return True


def last_restart(folder: AttemptFolder, log: Path) -> int:
    """Return how often the job was requeued, by its ranks' files and its log: accounting does not record it."""
    counts = [0]
    for count in (folder.last_restart, lambda: restarts_in(tail(log, LOG_LINES))):
        with suppress(OSError):
            counts.append(count())
    return max(counts)


def has_outcome(folder: AttemptFolder, restart: int) -> bool:
    """True if a complete outcome exists. The folder is listed first: network file systems refresh only then."""
    try:
        with os.scandir(folder.path) as entries:
            names = {entry.name for entry in entries}
        return folder.outcome(restart).name in names and read_json(folder.outcome(restart)) is not None
    except (OSError, ValueError):
        return False


def failure_excerpt(folder: AttemptFolder, message: str, log: str) -> str:
    """Combine Slurm's message with the root-cause traceback over all ranks, or else the end of the job's log."""
    logs = (log_tail(path, 400) for path in folder.rank_logs())
    return "\n".join(part for part in (message, first_cause(logs) or log) if part)


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """Return the last lines of a log that are of the job's last run; "" where it cannot be read."""
    try:
        return last_run(tail(path, lines))
    except OSError:
        return ""
