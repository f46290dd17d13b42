"""Node metrics during a trial, one line of JSON a sample. Standard library only.

Names and units are those of MLflow's system metrics.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from search_spaces.decoding import Bound, JsonObject
from trials.trial import UtcSeconds

MAX_NODES = 16
"""Largest number of sampled nodes of a trial, the first ones: each has a file, and nobody reads hundreds of charts."""
MAX_BYTES = 4 * 2**20
"""Size limit of one node's file; eight GPUs for a week make a third of it."""

_NAME = re.compile(
    r"cpu_utilization_percentage | system_memory_usage_(?:megabytes|percentage)"
    r"| network_(?:receive|transmit)_megabytes"
    r"| gpu_\d{1,2}_(?:utilization_percentage|memory_usage_(?:megabytes|percentage)|power_usage_(?:watts|percentage))",
    re.VERBOSE,
)


@dataclass(frozen=True)
class NodeSample(JsonObject):
    """One sample of a node; `values` are by MLflow's names.

    Units: percentages of 0 to 100, megabytes of 10^6 bytes, network traffic since the first sample. Unknown values are
    absent.
    """

    time: UtcSeconds
    values: Mapping[Annotated[str, Bound("a node's metric", _NAME.fullmatch)], float] = field(default_factory=dict)
