"""Cache of squeue's answer in a small file that all drivers of a user share."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from search_spaces.decoding import decode, encode, parse_json, require_schema
from search_spaces.plain_file import MAX_BYTES, open_plain
from slurm.interface import Slurm
from slurm.job_state import JobSnapshot
from trials.files.folders import write_json

LOCK_TIMEOUT_S = 35.0
"""A little longer than the longest query: the holder of the lock is running one."""

_SCHEMA = "parlay.slurm-jobs/1"

Query = Callable[[], tuple[JobSnapshot, ...]]


@dataclass(frozen=True)
class SqueueSnapshot:
    """Jobs as of `asked_at` (UTC seconds, the start of the query), which took `took_s` seconds."""

    jobs: tuple[JobSnapshot, ...]
    asked_at: float
    took_s: float

    @cached_property
    def by_name(self) -> dict[str, list[JobSnapshot]]:
        """Jobs by name, in the order of the answer."""
        found: dict[str, list[JobSnapshot]] = {}
        for job in self.jobs:
            found.setdefault(job.name, []).append(job)
        return found


class SqueueCache:
    """Cached answers of one cluster's squeue for several processes: queried as often as the most demanding of them
    needs.

    Any number of processes may share the folder, also from different nodes; it should be the user's own (0700). The
    file (0600) is used only if it is the user's own, private, complete, and of this cluster and user; otherwise it is
    ignored and replaced. Where the folder cannot be written or locked, every process queries Slurm itself.
    """

    def __init__(self, slurm: Slurm, folder: Path, key: Sequence[str], clock: Callable[[], float] | None = None):
        """`key` identifies the cluster (`environment.cluster_key`); `clock` returns UTC seconds (time.time)."""
        self._slurm = slurm
        self._key = [*key, slurm.user]
        self._clock = clock or (lambda: time.time())
        self._path = folder / f"squeue-{hashlib.sha256(json.dumps(self._key).encode()).hexdigest()[:16]}"

    def jobs(self, max_age_s: float) -> SqueueSnapshot:
        """Return the user's jobs from a query at most `max_age_s` old; 0 always queries. Raises SlurmUnreachable."""
        return self._answer(self._path, self._key, self._slurm.jobs, max_age_s)

    def jobs_on(self, nodes: Sequence[str], max_age_s: float) -> SqueueSnapshot:
        """Return all users' jobs on these nodes, as `jobs`. The answer for one list of nodes is kept."""
        path = self._path.with_name(f"{self._path.name}-nodes")
        return self._answer(path, [*self._key, *nodes], partial(self._slurm.jobs_on, nodes), max_age_s)

    def _answer(self, path: Path, key: Sequence[str], query: Query, max_age_s: float) -> SqueueSnapshot:
        file = path.with_suffix(".json")
        answer = self._recent(file, key, max_age_s)
        if answer is not None:
            return answer
        with _locked(path.with_suffix(".lock")):
            answer = self._recent(file, key, max_age_s)  # another process may have queried while this one waited
            return self._ask(file, key, query) if answer is None else answer

    def _recent(self, file: Path, key: Sequence[str], max_age_s: float) -> SqueueSnapshot | None:
        answer = _read(file, key) if max_age_s > 0 else None
        # A negative age means that a clock was set back, or differs between nodes: the age is unknown.
        return answer if answer is not None and 0 <= self._clock() - answer.asked_at <= max_age_s else None

    def _ask(self, file: Path, key: Sequence[str], query: Query) -> SqueueSnapshot:
        asked_at, start = self._clock(), time.monotonic()
        answer = SqueueSnapshot(query(), asked_at, time.monotonic() - start)
        with suppress(OSError):  # the cache only saves queries
            write_json(file, {"schema": _SCHEMA, "key": list(key), **encode(answer)})
        return answer


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock, or go on without it where it cannot be acquired in time."""
    from filelock import FileLock  # with asyncio, which verbs that query no Slurm do not need

    with ExitStack() as held:
        if path.parent.is_dir():  # else it would be created
            with suppress(OSError, NotImplementedError):  # a timeout, a file system without locks
                lock = FileLock(path, timeout=LOCK_TIMEOUT_S, mode=0o600, fallback_to_soft=False)
                held.enter_context(lock)
        yield


_known: dict[Path, tuple[tuple[Any, ...], SqueueSnapshot]] = {}
"""Last parsed content of each file with the file's version, so that a process parses it once for all its drivers."""


def _read(path: Path, key: Sequence[str]) -> SqueueSnapshot | None:
    """Return the content of the file; None if it is missing, not private, damaged, or of another cluster."""
    try:
        with open_plain(path) as stream:
            if not _is_ours_alone(status := os.fstat(stream.fileno())):
                return None
            version = (*key, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = _known.get(path)
            if known is None or known[0] != version:
                known = _known[path] = version, _answer(parse_json(stream.read(MAX_BYTES)), key)
            return known[1]
    except (OSError, ValueError):
        return None


def _is_ours_alone(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _answer(data: Any, key: Sequence[str]) -> SqueueSnapshot:
    require_schema(data, _SCHEMA)
    if data.get("key") != list(key):
        raise ValueError("another cluster")
    return decode(SqueueSnapshot, {name: data[name] for name in data if name not in ("schema", "key")})
