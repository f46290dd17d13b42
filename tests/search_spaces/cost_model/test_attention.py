"""Rates of fused attention kernels: by accelerator, engine, kernel, length of the keys and size of a head."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.cost_model.attention import fused_slowdown, overhead
from search_spaces.hardware.cluster import ACCELERATORS
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from tests.kit import LLAMA as LLAMA_FIELDS
from tests.kit import gpt

LLAMA = gpt(
    32, 4096, 32, num_key_value_heads=8, ffn_hidden_size=14336, vocab_size=128256, seq_length=8192, **LLAMA_FIELDS
)
LAYOUT = Layout(precision="bf16", attention_kernel="flash", engine="torch")


def slowdown(accelerator: str = "h100-80gb", **fields: object) -> float | None:
    table = LayoutTable.of([replace(LAYOUT, **fields)])
    found = fused_slowdown(LLAMA, ACCELERATORS[accelerator], 0.7, table)
    return None if found is None else float(found[0])


def test_kernels_for_hopper_are_faster_there_and_no_others_are():
    assert slowdown(engine="megatron-lm") == pytest.approx(slowdown() * 0.35 / 0.6)
    assert slowdown(engine="torchtitan") == slowdown(engine="megatron-lm")
    assert slowdown(engine="torchtitan", attention_kernel="flex") == slowdown()
    assert slowdown("a100-80gb", engine="megatron-lm") == slowdown("a100-80gb")
    assert slowdown("cpu") is slowdown("t4-16gb") is slowdown("mi300x-192gb") is None


@pytest.mark.parametrize(("accelerator", "tflops"), [("h200-141gb", 447), ("b200-180gb", 834)])
def test_the_rates_within_published_steps_are_met(accelerator: str, tflops: float):
    # stas00/ml-engineering, insights/when-to-upgrade-gpus/README.md: three passes counted, 3.5 computed.
    device = ACCELERATORS[accelerator]
    share = {"h200-141gb": 0.6, "b200-180gb": 0.5}[accelerator] / overhead(LLAMA)
    assert share * device.peak_flops_for("bf16") / 1e12 * 3 / 3.5 == pytest.approx(tflops, rel=0.05)


@pytest.mark.parametrize(
    ("keys", "tflops"), [(512, 430.3), (1024, 517.1), (2048, 565.5), (4096, 590.2), (16384, 620.7)]
)
def test_a_shorter_sequence_is_as_much_slower_as_measured(keys: int, tflops: float):
    # pytorch/benchmark, pull request 2391, without a mask: all keys.
    longest, given = (overhead(replace(LLAMA, seq_length=2 * length)) for length in (16384, keys))
    assert 620.7 * longest / given == pytest.approx(tflops, rel=0.03)


def test_small_heads_and_windows_are_slower():
    assert overhead(replace(LLAMA, attention_head_size=64)) > overhead(LLAMA)
    assert overhead(replace(LLAMA, sliding_window=128)) > 2 * overhead(LLAMA)
