"""Documents of a micro-batch, to which attention is limited where it is by document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents of one micro-batch of B sequences of S tokens, each cut where its sequence begins or ends.

    `lengths` are those of each sequence. `positions` (B, S) count from 0 in each document. `ends` are those of all
    documents in the B x S tokens, a zero before them, as kernels for sequences of varying length take them.
    """

    lengths: tuple[tuple[int, ...], ...]
    positions: torch.Tensor
    ends: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[Sequence[int]], device: torch.device) -> Documents:
        positions = torch.stack([torch.cat([torch.arange(n) for n in of_one]) for of_one in lengths])
        ends = torch.tensor([0, *accumulate(chain.from_iterable(lengths))], dtype=torch.int32)
        return cls(tuple(map(tuple, lengths)), positions.to(device), ends.to(device))

    @property
    def longest(self) -> int:
        return max(map(max, self.lengths))
