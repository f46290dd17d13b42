"""Speed of fused attention kernels, which have a rate of their own. Pure; numpy."""

from __future__ import annotations

import numpy as np

from search_spaces.cost_model.memory import engine_column
from search_spaces.hardware.cluster import BLACKWELL, HOPPER, Accelerator, chip_of
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape

TYPICAL_MATMUL = 1.22
"""Time of a transformer's products over that of the large square ones by which accelerators are rated: fitted to
Megatron-LM's published steps on A100 (arXiv 2205.05198, table 5; 2104.04473, table 1)."""
FLASH_2_SHARE = {"a100": 0.62, **dict.fromkeys(HOPPER, 0.35), **dict.fromkeys(BLACKWELL, 0.5)}
"""Shares of the 16-bit peak that FlashAttention 2 reaches with long sequences and large heads: "50-73%" on A100 (Dao,
arXiv 2307.08691, abstract), "35%" on H100 (Shah et al., arXiv 2407.08608, abstract). FlexAttention is taken to be as
fast. On Blackwell torch calls another kernel, taken to be the newest."""
NEWEST_SHARE = {"a100": 0.62, **dict.fromkeys(HOPPER, 0.6), **dict.fromkeys(BLACKWELL, 0.5)}
"""Those of kernels for Hopper and Blackwell. In a step of Llama 3.1 8B with 8192 tokens FlashAttention 3 reaches 447
TFLOP/s on H200 and 4 reaches 834 on B200, of three passes (stas00/ml-engineering,
insights/when-to-upgrade-gpus/README.md), where they compute 3.5; `overhead` comes on top."""
OVERHEAD_KEYS = 225
"""Keys whose time a query costs in addition: FlashAttention 3 on H100 reaches 430, 517, 566 and 621 TFLOP/s with 512,
1024, 2048 and 16384 (pytorch/benchmark, pull request 2391)."""
OVERHEAD_ELEMENTS = 12
"""Elements whose time a head costs in addition, fitted to steps with heads of 64 to 128 elements on A100
(mosaicml/llm-foundry, scripts/train/benchmarking/README.md)."""


def fused_slowdown(
    model: ModelShape, accelerator: Accelerator, products_share: float, layouts: LayoutTable
) -> np.ndarray | None:
    """Time of a fused kernel's FLOPs over that of as many in large products, of shape (layouts,); None where the
    accelerator's kernels are not known.

    `products_share` is the share of the peak that large products reach.
    """
    chip = chip_of(accelerator.name)
    if chip not in FLASH_2_SHARE:
        return None
    is_newest = engine_column(layouts, lambda engine: engine.has_newest_attention).astype(bool)
    share = np.where(is_newest & layouts.equals("attention_kernel", "flash"), NEWEST_SHARE[chip], FLASH_2_SHARE[chip])
    return products_share / TYPICAL_MATMUL / share * overhead(model)


def overhead(model: ModelShape) -> float:
    """Time of a fused kernel over that with long sequences and large heads."""
    keys = model.causal_positions / model.num_layers
    return (1 + OVERHEAD_KEYS / keys) * (1 + OVERHEAD_ELEMENTS / model.head_size)


def sink_seconds(model: ModelShape, layouts: LayoutTable, tokens: np.ndarray) -> np.ndarray:
    """Seconds that learned sinks add to attention in one layer, forward and backward, of shape (layouts,)."""
    is_newest = engine_column(layouts, lambda engine: engine.has_newest_attention).astype(bool)
    is_fused = is_newest & layouts.equals("attention_kernel", "flash")
    return np.where(is_fused & model.attention_sinks, tokens * model.num_attention_heads * SINK_S, 0)


SINK_S = 8.5e-9
"""Time of a token and head, in 16 bits: so much longer GPT-OSS 120B takes on GB200 and GB300 with the container whose
cuDNN is named as at fault than with the one before (NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary-archive.md,
26.06.01 and 26.06), where attention is in 8 bits. Earlier containers are taken to have had the kernel of the former."""
