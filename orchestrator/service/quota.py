"""Who may have how many trials in flight, where several searches share what is allowed in all."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class QuotaRequest:
    """A search's trials that have not ended, and how many it would have now if nobody else were there."""

    active: int
    target: int


def fair_shares(capacity: int, requests: Mapping[str, QuotaRequest]) -> dict[str, int]:
    """How many trials each search should have in flight: max-min fair, all alike, and never more than it wants.

    Their sum is `capacity`, or what all want together where that is less. What is left over where the capacity does not
    divide goes to those that hold most, one each, so that shares do not move while nothing else does; among equals to
    the earlier one in `requests`.
    """
    level = _level(capacity, [request.target for request in requests.values()])
    shares = {search: min(request.target, level) for search, request in requests.items()}
    wanting = [search for search, request in requests.items() if request.target > level]
    wanting.sort(key=lambda search: -requests[search].active)
    for search in wanting[: capacity - sum(shares.values())]:
        shares[search] += 1
    return shares


def grant_slots(capacity: int, requests: Mapping[str, QuotaRequest], search: str) -> int:
    """How many more trials this search may begin now.

    A trial in flight is never taken back: who has more than its share begins none until enough of them have ended, and
    what is free meanwhile goes to the others, fewest first. Together they never begin more than is free.
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
    """The requests of all searches, as they last told them; safe for several threads.

    `capacity` is how many trials may be in flight in all. Who began a trial last stands last in `requests`, and among
    equals comes last.
    """

    def __init__(self, capacity: int, requests: Mapping[str, QuotaRequest] | None = None):
        self._capacity = capacity
        self.requests = dict(requests or {})
        self._lock = threading.Lock()

    def grant(self, search: str, active: int, requested: int) -> int:
        """How many of `requested` trials the search may begin now, beside those it holds; they are its own from now on.

        Whatever it does not begin is free again when it asks next.
        """
        with self._lock:
            self.requests[search] = QuotaRequest(active, active + requested)
            granted = grant_slots(self._capacity, self.requests, search)
            if granted:
                del self.requests[search]
                self.requests[search] = QuotaRequest(active + granted, active + requested)
            return granted


def _level(capacity: int, wants: Sequence[int]) -> int:
    """The most that everybody may have who wants it, in whole trials."""
    left, ascending = capacity, sorted(wants)
    for index, want in enumerate(ascending):
        each = left // (len(ascending) - index)
        if want > each:
            return each
        left -= want
    return max(ascending, default=0)
