"""Node probe (`parlay doctor --submit-test`): each rank's view of its node (docs/doctor.md).

Standard library only: the compute side reads this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.decoding import JsonObject
from trials.diagnostics.calibration import GroupTime
from trials.files.folders import read_as, write_json

MARKS_SEEN_WITHIN_S = 90.0
"""Seconds for which a rank looks for the others' markers: NFS may cache a folder's listing for up to a minute."""


@dataclass(frozen=True)
class RankProbe:
    """One rank's view of its node; unknown values are None or ().

    `node` is Slurm's name of it, else the host's. `gpus` are the devices that torch shows the rank, `gpu` identifies
    its own. `cores` are those it may run on. `clock_s` is its clock (UTC seconds) after a barrier of all ranks.
    `unseen` are the ranks whose markers in the attempt's folder it did not find. `packages` are the installed versions
    of what engine megatron-core uses.
    """

    rank: int
    node: str
    host: str
    python: str
    executable: str
    torch: str
    cuda: str | None
    gpus: tuple[str, ...]
    gpu: str | None
    cores: tuple[int, ...]
    clock_s: float
    unseen: tuple[int, ...] = ()
    packages: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeProbeReport(JsonObject):
    """node_probe.json: what all ranks saw, in rank order, and how fast they talked."""

    SCHEMA = "parlay.node_probe/1"

    ranks: tuple[RankProbe, ...]
    groups: tuple[GroupTime, ...] = ()

    def write(self, folder: Path) -> None:
        write_json(folder / "node_probe.json", self.to_json())

    @classmethod
    def read(cls, folder: Path) -> NodeProbeReport | None:
        """None while there are none."""
        return read_as(cls, folder / "node_probe.json")


def marker_path(folder: Path, rank: int) -> Path:
    """The marker file of a rank, which all other ranks look for."""
    return folder / f"mark-{rank:05d}"
