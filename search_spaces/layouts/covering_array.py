"""Covering arrays: few members of a collection that together show all that any of it shows. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from itertools import combinations


def value_combinations(values: Mapping[str, Hashable], axes: Sequence[str], size: int) -> list[Hashable]:
    """Every combination of `size` of these axes with the values it has here, axes in the order given."""
    return [tuple((axis, values[axis]) for axis in chosen) for chosen in combinations(axes, size)]


def cover(shown: Sequence[Collection[Hashable]], costs: Sequence[float]) -> list[int]:
    """Indices of few and cheap members that together show everything that any member shows.

    Greedy set cover (Chvatal, Mathematics of Operations Research 4, 1979): always the member that shows most that is
    new for its cost, of equals the first; so the answer follows from the arguments alone. In the end those go that
    show nothing which the others do not.
    """
    masks = _masks(shown)
    missing, chosen = _union(masks), []
    while missing:
        best = max(range(len(masks)), key=lambda i: (masks[i] & missing).bit_count() / costs[i])
        chosen.append(best)
        missing &= ~masks[best]
    return _drop_redundant(chosen, masks, costs)


def _drop_redundant(chosen: Sequence[int], masks: Sequence[int], costs: Sequence[float]) -> list[int]:
    """The dearest are asked first."""
    left = list(chosen)
    for index in sorted(chosen, key=lambda i: -costs[i]):
        others = [i for i in left if i != index]
        if masks[index] & ~_union([masks[i] for i in others]) == 0:
            left = others
    return left


def _masks(shown: Sequence[Collection[Hashable]]) -> list[int]:
    """What each shows as one number, a bit for each thing that is shown: sets of thousands compared at once."""
    numbers: dict[Hashable, int] = {}
    masks = []
    for things in shown:
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
