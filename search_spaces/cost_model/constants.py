"""Constants of the time model, each a factor on the speed of data sheets, and seconds of many layouts by the constants
that multiply them. Pure; numpy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prior:
    """Prior of a constant: its median, and the standard deviation of its logarithm."""

    median: float
    log_sd: float


PRIORS = {
    "gemm": Prior(1.0, 0.2),
    "low_precision": Prior(1.0, 0.2),
    "experts": Prior(1.0, 0.3),
    "memory_traffic": Prior(1.0, 0.4),
    "collectives": Prior(1.3, 0.4),
    "latency": Prior(1.0, 0.7),
    "dispatch": Prior(1.3, 0.4),
    "fused_dispatch": Prior(1.0, 0.5),
    "across_domains": Prior(1.0, 0.5),
    "overlap": Prior(1.0, 0.5),
    "launches": Prior(1.0, 0.4),
    "sharded": Prior(1.45, 0.5),
    "pipeline": Prior(1.0, 1.1),
    "data_parallel": Prior(1.0, 0.4),
    "offload": Prior(1.0, 0.7),
    "step": Prior(1.0, 0.7),
    "machine": Prior(1.0, 0.1),
}
"""`low_precision`, `experts`, `fused_dispatch`, `across_domains` and `overlap` are of choices, and wide: what they cost
differs between machines and releases more than the model knows, and a trial of one moves all layouts that have it.
`machine` multiplies everything."""
CONSTANTS = tuple(PRIORS)
_INDEX = {name: index for index, name in enumerate(CONSTANTS)}


def typical_constants() -> np.ndarray:
    """Prior medians of the constants, in the order of CONSTANTS."""
    return np.array([PRIORS[name].median for name in CONSTANTS])


Key = tuple[str, tuple[str, ...]]
"""Part of a step, and the constants whose product multiplies the seconds."""


@dataclass(frozen=True)
class Columns:
    """Seconds of each layout by part and constants: `values` has shape (len(keys), layouts)."""

    keys: tuple[Key, ...]
    values: np.ndarray

    @classmethod
    def of(cls, seconds: Mapping[Key, np.ndarray]) -> Columns:
        return cls(tuple(seconds), np.stack([*seconds.values()]))

    def __getitem__(self, rows: np.ndarray) -> Columns:
        return Columns(self.keys, self.values[:, rows])

    @classmethod
    def concatenate(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of all parts, in order."""
        return cls(parts[0].keys, np.concatenate([part.values for part in parts], axis=1))

    def seconds(self, constants: np.ndarray) -> np.ndarray:
        """Seconds with these constants, whose last dimension is in the order of CONSTANTS."""
        return np.stack([product_of(names, constants) for _, names in self.keys], axis=-1) @ self.values

    def by_part(self, constants: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds of each part with these constants, of shape (len(CONSTANTS),)."""
        found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(self.values.shape[1]))
        for (part, names), seconds in zip(self.keys, self.values, strict=True):
            found[part] = found[part] + product_of(names, constants) * seconds
        return found


def product_of(names: Iterable[str], constants: np.ndarray) -> np.ndarray:
    """Product of these constants and that of the machine, whose last dimension is in the order of CONSTANTS."""
    product: np.ndarray = constants[..., [_INDEX[name] for name in (*names, "machine")]].prod(axis=-1)
    return product
