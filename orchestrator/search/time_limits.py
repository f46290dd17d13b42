"""How long an attempt may take: no longer than this search's trials make likely. Pure."""

from __future__ import annotations

from orchestrator.search.index import SearchIndex

TRIALS_THAT_TELL = 3
"""Measured trials after which their durations say something about the next one's."""

ROOM = 2.0
"""How much longer than the longest of them a trial may take: layouts differ, and so do nodes and file systems."""

LEAST_ROOM_S = 300.0
"""What every trial may take on top: a first start on other nodes (importing torch from a cold file system, a collective
library finding its network) takes minutes and does not scale with how long the earlier trials took."""


def time_limit_s(index: SearchIndex, most_s: float, num_nodes: int) -> float:
    """Seconds after which the next attempt on so many nodes is ended: at most `most_s`, the limit the search file sets.

    A shorter limit starts earlier on a full cluster and reserves less of the budget. A layout that needs longer ends
    as `time_limit`: slower than every trial measured before by more than the room, it would not have been the best, nor
    the best on its number of nodes.
    """
    if index.num_measured < TRIALS_THAT_TELL:
        return most_s
    return min(most_s, ROOM * index.longest_s(num_nodes) + LEAST_ROOM_S)
