"""Node metrics during a trial, one line of JSON a sample: the record and its reader. Standard library only.

Names and units are those of MLflow's system metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from search_spaces.decoding import Bound, JsonObject, parse_json
from search_spaces.plain_file import read_plain
from trials.trial import UtcText

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

    time: UtcText
    values: Mapping[Annotated[str, Bound("a node's metric", _NAME.fullmatch)], float] = field(default_factory=dict)


def sample_line(sample: NodeSample) -> bytes:
    """One whole line; ValueError for not-a-number."""
    return json.dumps(sample.to_json(), allow_nan=False).encode() + b"\n"


def read_samples(path: Path) -> list[NodeSample]:
    """The samples written so far; a last line still being written is left out, a missing file is empty.

    ValueError for a complete line that is not a sample, and for what is not a regular file of at most `MAX_BYTES`.
    """
    try:
        written = read_plain(path, MAX_BYTES)
    except FileNotFoundError:
        return []
    whole_lines = written[: written.rfind(b"\n") + 1].splitlines()
    try:
        return [NodeSample.from_json(parse_json(line)) for line in whole_lines]
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error
