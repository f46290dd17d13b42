"""Tables of docs/clusters.md against the accelerators."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.hardware.cluster import ACCELERATORS

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> dict[str, list[float | None]]:
    """Numbers of the first table after a heading, by accelerator; None for an empty cell."""
    table = PAGE.split(heading, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    cells = [
        [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        for line in table.split("\n")[2:]
    ]
    return {name: [*map(_number, rest)] for first, *rest in cells for name in re.findall(r"`([^`]+)`", first)}


def _number(cell: str) -> float | None:
    found = re.match(r"[\d.]+", cell)
    return float(found[0]) if found else None


def test_the_page_has_every_accelerators_numbers():
    rows = rows_after("## Accelerators")
    assert not any(rows.pop("cpu"))
    expected = {
        a.name: [
            (a.peak_flops_for("fp16") or 0) / 1e12,
            *(a.matmul_fraction, a.memory_gb_per_s, a.memory_gib, a.usable_memory_gib, a.host_gb_per_s),
        ]
        for a in ACCELERATORS.values()
        if a.name != "cpu"
    }
    assert rows == expected


def test_the_page_has_every_peak():
    expected = {
        a.name: [
            None if (peak := a.peak_flops_for(name)) is None else peak / 1e12 for name in ("fp32", "fp16", "fp8", "fp4")
        ]
        for a in ACCELERATORS.values()
        if a.name != "cpu"
    }
    assert rows_after("### Peaks by arithmetic") == expected
