"""Search for slow nodes by short runs of the same layout on parts of them. Pure: `measure` runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from orchestrator.replay.requirement import SlowNodes
from orchestrator.replay.speed_ratio import Confidence, ReplayVerdict, Run, by_session, compare_runs, step_time_of

Group = tuple[str, ...]
"""Nodes that hold one copy of the model, the fewest that a layout trains on."""
MeasureGroups = Callable[[Sequence[Group]], Run]
"""Run the layout with a copy of the model on each of these groups."""

_SWEPT = 4
"""So many groups or fewer are measured one by one."""
_PAIRS = 2
"""Runs of each side, by turns."""


def node_groups(nodes: Sequence[str], size: int) -> list[Group]:
    """Groups of `size` nodes; the last one overlaps with the one before where the nodes do not divide."""
    starts = [*range(0, len(nodes) - size + 1, size)]
    if starts[-1] + size < len(nodes):
        starts.append(len(nodes) - size)
    return [tuple(nodes[start : start + size]) for start in starts]


def slow_nodes(groups: Sequence[Group], measure: MeasureGroups, margin: float) -> Iterator[SlowNodes]:
    """The groups that are slower than the fastest other by more than the margin, at 99 % confidence: many are compared.

    Halves are measured by turns, and the slower one again, down to a few groups; both where neither is slower. These
    are then measured one by one, beside one of the faster half.
    """
    left, beside = list(groups), list[Group]()
    while len(left) > _SWEPT:
        half = -(-len(left) // 2)
        first, second = left[:half], left[-half:]
        of_first, of_second = _by_turns(measure, [first, second])
        if _is_slower(of_second, of_first, margin):
            left, beside = second, first[:1]
        elif _is_slower(of_first, of_second, margin):
            left, beside = first, second[-1:]
        else:
            break
    swept = [*left, *beside]
    measured = _by_turns(measure, [[group] for group in swept])
    for group, runs in zip(left, measured, strict=False):
        fastest = min((other for other in measured if other is not runs), key=_step_time)
        if _is_slower(runs, fastest, margin):
            found = compare_runs(fastest, runs, margin, Confidence.REPEATED_TEST).speed
            yield SlowNodes(nodes=[*group], ratio=found.value, ratio_low=found.low, ratio_high=found.high)


def _by_turns(measure: MeasureGroups, sides: Sequence[Sequence[Group]]) -> list[list[Run]]:
    runs: list[list[Run]] = [[] for _ in sides]
    for _ in range(_PAIRS):
        for side, found in zip(sides, runs, strict=True):
            found.append(measure(side))
    return runs


def _is_slower(runs: Sequence[Run], others: Sequence[Run], margin: float) -> bool:
    return compare_runs(others, runs, margin, Confidence.REPEATED_TEST).verdict is ReplayVerdict.SLOWER


def _step_time(runs: Sequence[Run]) -> float:
    return step_time_of(by_session(runs))
