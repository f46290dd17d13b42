"""Share of published rows that lie in the 95 % interval that `parlay expect` says, each source left out once.

    python -m benchmarks.expect_coverage throughput_2023_2026.csv rows_2026.csv [--json]

A source is predicted without the constants that its own rows set (benchmarks/published_left_out.py). The interval's
width, a share of the prior's, is that of 95 % of the other sources' rows, of all families; and the one that ships,
which was set on these left-out rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.output import Line, arguments_of, show
from benchmarks.published_left_out import TUNED, changed
from benchmarks.published_throughput import Reading, readings_in
from orchestrator.planning.expected_rate import Expected, Training, Z


@dataclass(frozen=True)
class Residual:
    """A row's distance from its prediction, in halves of the prior's 95 % interval, and the share of it that ships."""

    family: str
    source: str
    off: float
    shipped: float


def main() -> None:
    arguments = arguments_of(__doc__, "tables+")
    show(lines([reading for reading in readings_in(arguments.tables) if reading.counts]), arguments.json)


def lines(readings: Sequence[Reading]) -> Iterator[Line]:
    """Coverage of each family and of all, with the width of the other sources and with that which ships."""
    found = [*residuals(readings)]
    others = {name: _width([each for each in found if each.source != name]) for name in {each.source for each in found}}
    for family in [*sorted({each.family for each in found}), "all"]:
        of_it = [each for each in found if family in (each.family, "all")]
        yield {
            "family": family,
            "count": len(of_it),
            "covered": round(float(np.mean([each.off <= others[each.source] for each in of_it])), 3),
            "covered_as_shipped": round(float(np.mean([each.off <= each.shipped for each in of_it])), 3),
        }


def residuals(readings: Sequence[Reading]) -> Iterator[Residual]:
    """Of each row, predicted without what its source set."""
    for source in sorted({reading.source for reading in readings}):
        with changed({name: known.without for name, known in TUNED.items() if known.source == source}):
            for reading in readings:
                if reading.source == source and (training := reading.training) is not None:
                    asked = Training(training.model, training.cluster, training.layout)
                    expected = Expected.of(asked)
                    off = abs(expected.deviations(reading.measured * asked.layout.num_gpus)) / Z * asked.spread
                    yield Residual(reading.family, source, off, asked.spread)


def _width(found: Sequence[Residual]) -> float:
    """Width with 95 % of the rows, each source with the same weight."""
    ordered = sorted(found, key=lambda each: each.off)
    counts = {each.source: sum(other.source == each.source for other in found) for each in found}
    weights = np.cumsum([1 / counts[each.source] for each in ordered])
    return ordered[int(np.searchsorted(weights, 0.95 * weights[-1]))].off


if __name__ == "__main__":
    main()
