"""Peaks by arithmetic, against published trainings and in the two places that bound a measurement."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from search_spaces.hardware.arithmetic import peak_flops_of, speedup_over_fp16
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.layouts.layout import Layout
from search_spaces.schema.presets import accelerator_named

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "published" / "throughput_2023_2026.csv"


@pytest.mark.parametrize(
    ("fields", "peak"),
    [
        ({"precision": "bf16"}, 2500e12),
        ({"precision": "fp32"}, 80e12),
        ({"matmul_precision": "fp8_tensorwise", "engine": "torchtitan"}, 5000e12),
        ({"matmul_precision": "nvfp4", "engine": "megatron-lm"}, 15e15),
    ],
)
def test_the_peak_of_a_layout_is_that_of_its_arithmetic(fields: dict[str, str], peak: float):
    assert peak_flops_of(ACCELERATORS["gb300-288gb"], Layout(**fields)) == peak
    assert peak_flops_of(ACCELERATORS["cpu"], Layout(**fields)) is None


@pytest.mark.parametrize(
    ("name", "arithmetic", "speedup"),
    [
        ("h100-80gb", "fp8", 1979 / 989),
        ("gb300-288gb", "fp4", 6),
        ("h100-80gb", "bf16", 1),
        ("a100-80gb", "fp8", 1),
        ("cpu", "bf16", 1),
        (None, "fp4", 1),
    ],
)
def test_a_product_of_fp16_bounds_others_by_the_ratio_of_the_peaks(name: str | None, arithmetic: str, speedup: float):
    assert speedup_over_fp16(ACCELERATORS.get(name or ""), arithmetic) == pytest.approx(speedup)


@pytest.mark.skipif(not PUBLISHED.exists(), reason="no measured tables beside the checkout")
def test_published_trainings_are_below_the_peak_of_their_arithmetic_and_some_are_above_that_of_bf16():
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tflops_per_gpu"]]
    above_bf16 = set()
    for row in rows:
        accelerator = accelerator_named(row["accelerator"].removeprefix("dgx-"))
        reached = float(row["tflops_per_gpu"]) * 1e12
        assert reached <= accelerator.peak_flops_for(_arithmetic(row["precision"])), row
        if reached > accelerator.peak_flops_for("bf16"):
            above_bf16.add((accelerator.name, row["precision"]))
    assert len(rows) > 300
    assert above_bf16 == {("gb300-288gb", "nvfp4")}


def _arithmetic(published: str) -> str:
    """The arithmetic of a published row: all recipes of 8-bit floats have one peak. 8 bits where it is not said."""
    if "fp4" in published:
        return "fp4"
    return "bf16" if published == "bf16" else "fp8"
