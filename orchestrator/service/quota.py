"""Fair shares of a limit on trials in flight, for several searches."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


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


class Quota:
    """Latest requests of all searches. Thread-safe.

    `capacity` is the limit on trials in flight in total. `requests` is ordered by the last grant, latest last.
    """

    def __init__(self, capacity: int, requests: Mapping[str, QuotaRequest] | None = None):
        self._capacity = capacity
        self.requests = dict(requests or {})
        self._lock = threading.Lock()

    def grant(self, search: str, active: int, requested: int) -> int:
        """Grant up to `requested` trials beyond the `active` ones.

        Granted trials that are not begun are free again at the search's next request.
        """
        with self._lock:
            self.requests[search] = QuotaRequest(active, active + requested)
            granted = grant_slots(self._capacity, self.requests, search)
            if granted:
                del self.requests[search]
                self.requests[search] = QuotaRequest(active + granted, active + requested)
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
