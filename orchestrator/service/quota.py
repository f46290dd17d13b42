"""Who may have how many trials in flight, where several searches share what is allowed in all."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """A search's trials that have not ended, and how many it would have now if nobody else were there."""

    held: int
    wanted: int


def fair_shares(capacity: int, demands: Mapping[str, Demand]) -> dict[str, int]:
    """How many trials each search should have in flight: max-min fair, all alike, and never more than it wants.

    Their sum is `capacity`, or what all want together where that is less. What is left over where the capacity does not
    divide goes to those that hold most, one each, so that shares do not move while nothing else does; among equals to
    the earlier one in `demands`.
    """
    level = _level(capacity, [demand.wanted for demand in demands.values()])
    shares = {search: min(demand.wanted, level) for search, demand in demands.items()}
    wanting = [search for search, demand in demands.items() if demand.wanted > level]
    wanting.sort(key=lambda search: -demands[search].held)
    for search in wanting[: capacity - sum(shares.values())]:
        shares[search] += 1
    return shares


def may_begin(capacity: int, demands: Mapping[str, Demand], search: str) -> int:
    """How many more trials this search may begin now.

    A trial in flight is never taken back: who has more than its share begins none until enough of them have ended, and
    what is free meanwhile goes to the others, fewest first. Together they never begin more than is free.
    """
    shares = fair_shares(capacity, demands)
    free = capacity - sum(demand.held for demand in demands.values())
    short = {name: shares[name] - demand.held for name, demand in demands.items() if shares[name] > demand.held}
    begun = dict.fromkeys(short, 0)
    for _ in range(min(free, sum(short.values()))):
        name = min((n for n in short if begun[n] < short[n]), key=lambda n: demands[n].held + begun[n])
        begun[name] += 1
    return begun.get(search, 0)


class Shares:
    """The demands of all searches, as they last told them; safe for several threads.

    `capacity` is how many trials may be in flight in all. Who began a trial last stands last in `demands`, and among
    equals comes last.
    """

    def __init__(self, capacity: int, demands: Mapping[str, Demand] | None = None):
        self._capacity = capacity
        self.demands = dict(demands or {})
        self._lock = threading.Lock()

    def ask(self, search: str, held: int, more: int) -> int:
        """How many of `more` trials the search may begin now, beside those it holds; they are its own from now on.

        Whatever it does not begin is free again when it asks next.
        """
        with self._lock:
            self.demands[search] = Demand(held, held + more)
            begun = may_begin(self._capacity, self.demands, search)
            if begun:
                del self.demands[search]
                self.demands[search] = Demand(held + begun, held + more)
            return begun


def _level(capacity: int, wants: Sequence[int]) -> int:
    """The most that everybody may have who wants it, in whole trials."""
    left, ascending = capacity, sorted(wants)
    for index, want in enumerate(ascending):
        each = left // (len(ascending) - index)
        if want > each:
            return each
        left -= want
    return max(ascending, default=0)
