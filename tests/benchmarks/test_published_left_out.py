"""Errors of published layouts with each family left out of the tuning of the constants."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.published_left_out import (
    DENSE_FSDP,
    EXPERTS,
    FITTED_TO_MPT,
    SHIPPED,
    TUNED_BY,
    UNFITTED,
    fitted,
    lines,
    readable,
    using,
    without,
)
from benchmarks.published_throughput import Reading
from tests.benchmarks.published_rows import BRIDGE, QWEN, TITAN, reading

H100 = {"accelerator": "h100-80gb"}
HEADS = {"num_attention_heads": "12", "num_key_value_heads": "12"}
SMALL = HEADS | {"micro_batch_size": "1", "hidden_size": "768", "ffn_hidden_size": "3072"}
WIDE = {"micro_batch_size": "1", "num_gpus": "64", "dp": "64"}


def predicted(found: Reading) -> float:
    assert found.training is not None
    return found.training.predicted


@pytest.mark.parametrize(
    ("constant", "factor", "changed"),
    [
        ("matmul", 1.1, {}),
        ("half_speed_hidden", 1.1, {}),
        ("h100_slowdown", 1.1, H100),
        ("launches", 1.5, SMALL),
        ("sharded", 1.5, WIDE),
        ("eager_traffic", 1.1, TITAN),
        ("overhead_elements", 1.5, {}),
        ("triton_a100", 1 / 1.1, {}),
        ("triton_h100", 1 / 1.1, H100),
        ("sinks", 1.5, BRIDGE | QWEN | {"model": "GPT OSS 120B"}),
    ],
)
def test_each_constant_slows_the_rows_that_depend_on_it_and_is_shipped_again_afterwards(
    constant: str, factor: float, changed: dict[str, str]
):
    found = reading(**changed)
    shipped = predicted(found)
    with using(SHIPPED):
        assert predicted(found) == pytest.approx(shipped, rel=1e-9)
    with using(SHIPPED | {constant: SHIPPED[constant] * factor}):
        assert predicted(found) < shipped * 0.9999
    assert predicted(found) == shipped


def test_a_fit_finds_the_constants_with_which_the_rates_were_made():
    lengths = [reading(seq_length=length, **machine) for length in ("512", "8192") for machine in ({}, H100, SMALL)]
    slower = SHIPPED | {"matmul": 1.4, "triton_a100": 0.25}
    with using(slower):
        rates = [f"{predicted(found)}" for found in lengths]
    made = [
        replace(found, row={**found.row, "tokens_per_s_per_gpu": rate})
        for found, rate in zip(lengths, rates, strict=True)
    ]
    with using(SHIPPED | fitted(made)):
        assert [predicted(found) / found.measured for found in made] == pytest.approx([1] * len(made), abs=0.01)


def test_a_constant_that_no_other_family_tells_has_no_fit():
    readings = [reading(), reading(**BRIDGE | QWEN)]
    for family in (DENSE_FSDP, EXPERTS):
        assert without(family, readings) == SHIPPED | {name: UNFITTED[name] for name in TUNED_BY[family]}
    changed = without("dense 3D", readings)
    assert {name for name in SHIPPED if changed[name] != SHIPPED[name]} <= set(FITTED_TO_MPT)


def test_a_family_that_set_no_constant_is_predicted_with_the_shipped_ones_and_says_so():
    found = reading(precision="fp8")
    first, all_stacks, *_ = lines([found, reading()], None)
    assert readable(first) == "8 and 4 bits left out: no constant was fitted to it"
    assert all_stacks["error_median"] == pytest.approx(abs(predicted(found) / found.measured - 1), abs=1e-4)
    other = next(lines([reading()], None))
    assert readable(other).startswith("dense FSDP left out: sharded 1 (shipped 1.45), ")
