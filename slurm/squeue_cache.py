"""One squeue for all drivers of a user: the last answer lies in a small file that they share."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from slurm.interface import Slurm
from slurm.job_state import JobSnapshot, JobState

LOCK_TIMEOUT_S = 35.0
"""A little longer than the longest question: who holds the lock is asking."""

_LOCK_LOOK_S = 0.05
_MAX_BYTES = 64 * 1024 * 1024
_SCHEMA = "parlay.slurm-jobs/1"
_JOB_FIELDS = {field.name for field in fields(JobSnapshot)}


@dataclass(frozen=True)
class SqueueSnapshot:
    """The jobs as they were at `asked_at` (UTC seconds, the beginning of the question), which took `took_s` seconds."""

    jobs: tuple[JobSnapshot, ...]
    asked_at: float
    took_s: float

    @cached_property
    def by_name(self) -> dict[str, list[JobSnapshot]]:
        """The jobs of each name, in the order of the answer."""
        found: dict[str, list[JobSnapshot]] = {}
        for job in self.jobs:
            found.setdefault(job.name, []).append(job)
        return found


class SqueueCache:
    """`jobs` of one cluster, asked for at most as often as the most impatient of several processes needs it.

    Any number of processes may use the same folder, also from different nodes; it should be the user's own (0700). The
    file (0600) is trusted only if it is the user's own, private, whole, and of this cluster and user; anything else is
    ignored and replaced. Where the folder cannot be written or locked, every process asks for itself.
    """

    def __init__(self, slurm: Slurm, folder: Path, key: Sequence[str], clock: Callable[[], float] | None = None):
        """`key` tells clusters apart (`environment.cluster_key`); `clock` gives UTC seconds, time.time if absent."""
        self._slurm = slurm
        self._key = [*key, slurm.user]
        self._clock = clock or (lambda: time.time())
        name = hashlib.sha256(json.dumps(self._key).encode()).hexdigest()[:16]
        self._file = folder / f"squeue-{name}.json"
        self._lock = folder / f"squeue-{name}.lock"

    def jobs(self, max_age_s: float) -> SqueueSnapshot:
        """An answer whose question is at most `max_age_s` old; 0 asks anew in any case. Raises SlurmUnreachable."""
        answer = self._recent(max_age_s)
        if answer is not None:
            return answer
        with _locked(self._lock):
            answer = self._recent(max_age_s)  # somebody else may have asked while we waited
            return self._ask() if answer is None else answer

    def _recent(self, max_age_s: float) -> SqueueSnapshot | None:
        answer = _read(self._file, self._key) if max_age_s > 0 else None
        # An age below zero is a clock that was set back, or another node's: nothing is known of such an answer's age.
        return answer if answer is not None and 0 <= self._clock() - answer.asked_at <= max_age_s else None

    def _ask(self) -> SqueueSnapshot:
        asked_at, begun = self._clock(), time.monotonic()
        answer = SqueueSnapshot(self._slurm.jobs(), asked_at, time.monotonic() - begun)
        with suppress(OSError):  # sharing saves questions, nothing more
            _write(self._file, self._key, answer)
        return answer


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock; without it where it cannot be had in time, or at all."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        _try_lock(descriptor)
        yield
    finally:
        os.close(descriptor)  # gives the lock back


def _try_lock(descriptor: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOCK_LOOK_S)
        except OSError:  # a file system without locks
            return


def _write(path: Path, key: Sequence[str], answer: SqueueSnapshot) -> None:
    """Swapped in with one rename; mkstemp makes the file 0600."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as stream:
            jobs = [vars(job) for job in answer.jobs]
            data = {"jobs": jobs, "asked_at": answer.asked_at, "took_s": answer.took_s}
            stream.write(json.dumps({"schema": _SCHEMA, "key": list(key), **data}))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_known: dict[Path, tuple[tuple[Any, ...], SqueueSnapshot]] = {}
"""What was last found in each file, and which file that was: a process parses an answer once for all its drivers."""


def _read(path: Path, key: Sequence[str]) -> SqueueSnapshot | None:
    """The answer in this file; None for a file that is not there, not ours alone, damaged, or of another cluster."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, encoding="utf-8") as stream:
            if not _is_ours_alone(status := os.fstat(descriptor)):
                return None
            version = (*key, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = _known.get(path)
            if known is None or known[0] != version:
                known = _known[path] = version, _answer(json.loads(stream.read(_MAX_BYTES)), key)
            return known[1]
    except (OSError, ValueError, KeyError, OverflowError, RecursionError):
        return None


def _is_ours_alone(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _answer(data: Any, key: Sequence[str]) -> SqueueSnapshot:
    if not isinstance(data, dict) or data.get("schema") != _SCHEMA or data.get("key") != list(key):
        raise ValueError("another schema or cluster")
    jobs, asked_at, took_s = data["jobs"], data["asked_at"], data["took_s"]
    if not (isinstance(jobs, list) and _is_seconds(asked_at) and _is_seconds(took_s)):
        raise ValueError("no answer")
    return SqueueSnapshot(tuple(map(_job, jobs)), asked_at, took_s)


def _job(data: Any) -> JobSnapshot:
    if not isinstance(data, dict) or data.keys() != _JOB_FIELDS:
        raise ValueError("no job")
    texts = [data[name] for name in ("job_id", "name", "user", "state_text", "reason") if data[name] is not None]
    times = [data[name] for name in ("submitted_at", "started_at", "ended_at") if data[name] is not None]
    numbers = [data[name] for name in ("exit_code", "signal", "restarts") if data[name] is not None]
    nodes = data["nodes"]
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(map(_is_seconds, times))
        or not all(isinstance(number, int) for number in numbers)
        or not (isinstance(nodes, list) and all(isinstance(node, str) for node in nodes))
    ):
        raise ValueError("no job")
    return JobSnapshot(**{**data, "state": JobState(data["state"]), "nodes": tuple(nodes)})


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
