"""A quota shared by several processes, kept in a small file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock

from orchestrator.service.quota import Quota, QuotaRequest
from search_spaces.decoding import decode_value
from trials.files.folders import read_json, write_json

QUOTA_SCHEMA = "parlay.quota/1"


class QuotaFile:
    """`Quota` in this file (0600) on a local disk; its lock holds between the processes of this machine.

    `capacity` is the limit on trials in flight in total.
    """

    def __init__(self, path: Path, capacity: int):
        self._path = path
        self._capacity = capacity

    def reset(self, active: Mapping[str, int]) -> None:
        """Replace all requests by the active trials of searches that have no driver yet."""
        with self._locked():
            self._write({search: QuotaRequest(count, count) for search, count in active.items()})

    def grant(self, search: str, active: int, requested: int) -> int:
        """Grant up to `requested` trials beyond the `active` ones (see Quota.grant)."""
        with self._locked():
            quota = Quota(self._capacity, self._read())
            granted = quota.grant(search, active, requested)
            self._write(quota.requests)
            return granted

    def set_active(self, search: str, active: int) -> None:
        """Set the active trials of a search without a driver; 0 once it has ended."""
        with self._locked():
            requests = self._read()
            requests.pop(search, None)
            if active:
                requests[search] = QuotaRequest(active, active)
            self._write(requests)

    def _read(self) -> dict[str, QuotaRequest]:
        """Latest requests; none if the file is missing or truncated, since searches ask again."""
        with suppress(OSError, ValueError):
            found = (read_json(self._path) or {}).get("searches")
            return dict(decode_value(Mapping[str, QuotaRequest], found, "searches"))
        return {}

    def _write(self, requests: Mapping[str, QuotaRequest]) -> None:
        searches = {search: asdict(request) for search, request in requests.items()}
        write_json(self._path, {"schema": QUOTA_SCHEMA, "searches": searches})

    def _locked(self) -> FileLock:
        return FileLock(self._path.with_name(f"{self._path.name}.lock"), mode=0o600, fallback_to_soft=False)
