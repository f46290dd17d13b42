"""Published measurements of training speed, as they ship with Parlay: facts with their source, its commit and date.

`python -m benchmarks.published_table` makes the table from its sources. Standard library only.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import accelerator_named

TABLE = Path(__file__).parents[1] / "published" / "throughput.csv"
COLUMNS = (
    *("source", "date", "release", "model_name", "machine", "num_gpus", "gpus_per_node"),
    *("tokens_per_sec_per_gpu", "model", "layout"),
)


@dataclass(frozen=True)
class Published:
    """A published row. `source` is repository, path and commit, `date` the commit's, `release` the trainer's where it
    is told."""

    source: str
    date: str
    release: str
    model_name: str
    cluster: Cluster
    tokens_per_sec_per_gpu: float
    model: ModelShape
    layout: Layout


def read_published() -> Iterator[Published]:
    """The rows of the table."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            gpus, per_node = int(row["num_gpus"]), int(row["gpus_per_node"])
            yield Published(
                **{name: row[name] for name in ("source", "date", "release", "model_name")},
                cluster=Cluster(accelerator_named(row["machine"]), per_node, gpus // per_node),
                tokens_per_sec_per_gpu=float(row["tokens_per_sec_per_gpu"]),
                model=ModelShape.from_json(json.loads(row["model"])),
                layout=Layout.from_json(json.loads(row["layout"])),
            )


def compact(value: ModelShape | Layout) -> str:
    """JSON of the fields that differ from their defaults."""
    defaults: Mapping[str, Any] = {f.name: f.default for f in fields(value) if f.default is not MISSING}
    return json.dumps(
        {n: v for n, v in value.to_json().items() if v != defaults.get(n, MISSING)}, separators=(",", ":")
    )
