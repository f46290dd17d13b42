"""Makes the table of published measurements that ships with Parlay from its sources.

    python -m benchmarks.published_table throughput_2023_2026.csv rows_2026.csv

Rows that Parlay cannot say, and those whose authors name a fault or leave open what decides the speed, are left out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.fine_tuning import rated
from benchmarks.output import arguments_of
from benchmarks.published_throughput import Training, readings_in
from search_spaces.tables.published import COLUMNS, TABLE, compact

DATES = {
    "067f987": "2026-08-22",
    "8c8dd48": "2025-07-21",
    "4dcaae5": "2026-05-11",
    "b5bcd76": "2026-08-21",
    "95b939cd": "2026-07-23",
    "36044ad": "2026-08-22",
}
"""Date of each source's commit."""
AUTOMODEL = "NVIDIA-NeMo/Automodel docs/performance-summary.mdx@36044ad"


def main() -> None:
    arguments = arguments_of(__doc__, "tables+")
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([COLUMNS, *rows_of(arguments.tables)])


def rows_of(tables: Iterable[Path]) -> Iterator[tuple[object, ...]]:
    for reading in readings_in(tables):
        if reading.counts and reading.training is not None:
            row = reading.row
            release = row["section"].split()[0] if row["trainer"] == "megatron-bridge" and row["section"] else ""
            yield _row(row["source"], release, row["model"], reading.training, reading.measured)
    for name, training, published in rated():
        yield _row(AUTOMODEL, "", name, training, published)


def _row(source: str, release: str, name: str, training: Training, rate: float) -> tuple[object, ...]:
    cluster, date = training.cluster, DATES[source.rpartition("@")[2]]
    place = (cluster.accelerator.name, training.layout.num_gpus, cluster.gpus_per_node)
    return source, date, release, name, *place, rate, compact(training.model), compact(training.layout)


if __name__ == "__main__":
    main()
