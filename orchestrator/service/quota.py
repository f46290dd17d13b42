"""Fair shares of a limit on trials in flight, for several searches and their processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from search_spaces.decoding import decode_value
from trials.files.folders import read_json, write_json

QUOTA_SCHEMA = "parlay.quota/1"


@dataclass(frozen=True)
class QuotaRequest:
    """`active` trials of a search have not ended; `target` is how many it would have without other searches."""

    active: int
    target: int


def fair_shares(capacity: int, requests: Mapping[str, QuotaRequest]) -> dict[str, int]:
    """Trials in flight for each search: max-min fair, and never more than its target.

    The sum is `capacity`, or the sum of all targets if that is less. A remainder goes to the searches with the most
    active trials, one each, so that shares stay stable; among equals to the earlier one in `requests`.
    """
    level = _level(capacity, [request.target for request in requests.values()])
    shares = {search: min(request.target, level) for search, request in requests.items()}
    wanting = [search for search, request in requests.items() if request.target > level]
    wanting.sort(key=lambda search: -requests[search].active)
    for search in wanting[: capacity - sum(shares.values())]:
        shares[search] += 1
    return shares


def grant_slots(capacity: int, requests: Mapping[str, QuotaRequest], search: str) -> int:
    """Number of further trials that this search may begin now.

    A trial in flight is never taken back: a search above its share begins none until enough of its trials have ended,
    and free slots go to the others, fewest active first. Together they never begin more than is free.
    """
    shares = fair_shares(capacity, requests)
    free = capacity - sum(request.active for request in requests.values())
    short = {name: shares[name] - request.active for name, request in requests.items() if shares[name] > request.active}
    granted = dict.fromkeys(short, 0)
    for _ in range(min(free, sum(short.values()))):
        name = min((n for n in short if granted[n] < short[n]), key=lambda n: requests[n].active + granted[n])
        granted[name] += 1
    return granted.get(search, 0)


def grant(capacity: int, requests: dict[str, QuotaRequest], search: str, active: int, requested: int) -> int:
    """Grant a search up to `requested` trials beyond its `active` ones, and note that in `requests`, which are ordered
    by the last grant, latest last.

    Granted trials that are not begun are free again at the search's next request.
    """
    requests[search] = QuotaRequest(active, active + requested)
    granted = grant_slots(capacity, requests, search)
    if granted:
        del requests[search]
        requests[search] = QuotaRequest(active + granted, active + requested)
    return granted


def _level(capacity: int, wants: Sequence[int]) -> int:
    """Largest number of trials that every search may have that wants it."""
    left, ascending = capacity, sorted(wants)
    for index, want in enumerate(ascending):
        each = left // (len(ascending) - index)
        if want > each:
            return each
        left -= want
    return max(ascending, default=0)


class QuotaFile:
    """Latest requests of all searches in this file (0600) on a local disk; its lock holds between the processes of this
    machine.

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
        """Grant up to `requested` trials beyond the `active` ones."""
        with self._locked():
            requests = self._read()
            granted = grant(self._capacity, requests, search, active, requested)
            self._write(requests)
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
