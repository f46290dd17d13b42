"""Tables of docs/clusters.md against the accelerators."""

from __future__ import annotations

import re

from search_spaces.hardware.cluster import ACCELERATORS
from tests.docs.console import ROOT

PAGE = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")


def rows_after(heading: str) -> dict[str, list[float | None]]:
    """Numbers of the first table after a heading, by accelerator; None for an empty cell."""
    table = PAGE.split(heading, 1)[1].split("\n\n|", 1)[1].split("\n\n", 1)[0]
    rows = (line.strip().strip("|").split("|") for line in table.split("\n")[2:])
    return {name: [*map(_number, rest)] for first, *rest in rows for name in re.findall(r"`([^`]+)`", first)}


def _number(cell: str) -> float | None:
    found = re.match(r" *([\d.]+)", cell)
    return float(found[1]) if found else None


def test_the_page_has_every_accelerators_numbers_and_peaks():
    numbers, peaks = rows_after("## Accelerators"), rows_after("### Peaks by arithmetic")
    assert not any(numbers.pop("cpu"))
    assert numbers.keys() == peaks.keys() == ACCELERATORS.keys() - {"cpu"}
    for name in numbers:
        a = ACCELERATORS[name]
        peak = {key: flops / 1e12 for key in ("fp32", "fp16", "fp8", "fp4") if (flops := a.peak_flops_for(key))}
        others = [a.gemm_share, a.memory_gb_per_s, a.memory_gib, a.usable_memory_gib, a.host_gb_per_s]
        assert numbers[name] == [peak.get("fp16", 0), *others]
        assert peaks[name] == [peak.get(key) for key in ("fp32", "fp16", "fp8", "fp4")]
