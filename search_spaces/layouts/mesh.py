"""RankMesh: numbering of ranks along parallel dimensions. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any


@dataclass(frozen=True, eq=False)
class RankMesh:
    """Ranks numbered along named dimensions, the innermost first: `sizes` has the number of ranks along each.

    Where the sizes are columns of a table instead of numbers, so are the world size, strides and blocks.
    """

    sizes: Mapping[str, Any]

    @classmethod
    def ordered(cls, order: str, sizes: Mapping[str, Any]) -> RankMesh:
        """Mesh of the dimensions that `order` names, innermost first, such as `tp-cp-dp-pp`.

        ValueError if `sizes` has another dimension, KeyError if it lacks one.
        """
        dims = order.split("-")
        if left_out := sizes.keys() - {*dims}:
            raise ValueError(f"{order} has no place for {', '.join(sorted(left_out))}")
        return cls({dim: sizes[dim] for dim in dims})

    def without(self, dim: str) -> RankMesh:
        """Mesh of the other dimensions: of the ranks with one coordinate along `dim`."""
        return RankMesh({name: size for name, size in self.sizes.items() if name != dim})

    @cached_property
    def world_size(self) -> Any:
        return prod(self.sizes.values())

    def stride(self, dim: str) -> Any:
        """Distance in ranks between neighbours along a dimension."""
        dims = [*self.sizes]
        return prod(self.sizes[inner] for inner in dims[: dims.index(dim)])

    def block(self, dim: str) -> Any:
        """Size of the block of consecutive ranks that is filled by groups along a dimension."""
        return self.stride(dim) * self.sizes[dim]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Index of a rank along each dimension."""
        return {dim: rank // self.stride(dim) % size for dim, size in self.sizes.items()}

    def rank(self, **coordinates: int) -> int:
        """The rank with these coordinates, 0 along all other dimensions."""
        return sum(index * self.stride(dim) for dim, index in coordinates.items())

    def neighbours(self, rank: int, dim: str) -> tuple[int | None, int | None]:
        """The previous and the next rank along a dimension, None at either end; of `pp` the stages before and after."""
        group = self.group(rank, dim)
        index = group.index(rank)
        return (group[index - 1] if index else None, group[index + 1] if index + 1 < len(group) else None)

    def group(self, rank: int, *dims: str) -> list[int]:
        """Ranks with this one's coordinates along all dimensions but these; ascending."""
        at = self.coordinates(rank)
        first = rank - self.rank(**{dim: at[dim] for dim in dims})
        return [first + offset for offset in self._offsets(dims)]

    def groups(self, *dims: str) -> list[list[int]]:
        """Every group along these dimensions, in the order of their first ranks."""
        offsets = self._offsets(dims)
        return [[first + offset for offset in offsets] for first in self._offsets(self.sizes.keys() - {*dims})]

    def _offsets(self, dims: Iterable[str]) -> list[int]:
        """Distances of a group's ranks from its first; ascending."""
        return sorted(map(sum, product(*(range(0, self.block(dim), self.stride(dim)) for dim in dims))))
