"""Covering arrays: few members of a collection that together cover all that any member covers. Standard library
only."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import combinations


def value_combinations(values: Mapping[str, Hashable], axes: Sequence[str], size: int) -> list[Hashable]:
    """Every combination of `size` of these axes with their values here, axes in the order given."""
    return [tuple((axis, values[axis]) for axis in chosen) for chosen in combinations(axes, size)]


def cover(covered: Sequence[Collection[Hashable]], costs: Sequence[float]) -> list[int]:
    """Indices of few and cheap members that together cover everything that any member covers.

    Greedy set cover (Chvatal, Mathematics of Operations Research 4, 1979): repeatedly the member that covers most new
    items per cost, the first of equals, so the result is deterministic. Redundant members are dropped at the end.
    """
    masks = _masks(covered)
    missing, chosen = _union(masks), []
    while missing:
        best = max(range(len(masks)), key=lambda i: (masks[i] & missing).bit_count() / costs[i])
        chosen.append(best)
        missing &= ~masks[best]
    return _drop_redundant(chosen, masks, costs)


def _drop_redundant(chosen: Sequence[int], masks: Sequence[int], costs: Sequence[float]) -> list[int]:
    """The chosen members without those that the others cover, the most expensive dropped first."""
    left = list(chosen)
    for index in sorted(chosen, key=lambda i: -costs[i]):
        others = [i for i in left if i != index]
        if masks[index] & ~_union([masks[i] for i in others]) == 0:
            left = others
    return left


def _masks(covered: Sequence[Collection[Hashable]]) -> list[int]:
    """Bit mask of the items each member covers, for fast set operations."""
    numbers: dict[Hashable, int] = {}
    masks = []
    for things in covered:
        mask = 0
        for thing in things:
            mask |= 1 << numbers.setdefault(thing, len(numbers))
        masks.append(mask)
    return masks


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
