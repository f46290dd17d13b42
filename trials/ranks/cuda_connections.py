"""CUDA_DEVICE_MAX_CONNECTIONS of a trial: hardware queues of a process, set by device, trainer and layout and never
searched. Standard library only.

Sources: validate_args() of Megatron-LM core_v0.16.1 and main, and PerfEnvPlugin of Megatron-Bridge's performance
recipes (_set_num_cuda_device_max_connections). No GPU has measured them here.
"""

from __future__ import annotations

from search_spaces.hardware.cluster import BLACKWELL, chip_of
from search_spaces.layouts.layout import FUSED_DISPATCHERS, Layout
from trials.trainers.common.options import option_names

VARIABLE = "CUDA_DEVICE_MAX_CONNECTIONS"
ONE = {VARIABLE: "1"}
"""A single queue: kernels start in the order of their launch, so that a collective comes before the product that it is
to overlap."""
MANY = {VARIABLE: "32"}
"""A queue for each stream, where collectives and products of several streams run side by side."""


def connections(layout: Layout, accelerator: str) -> dict[str, str]:
    """The variable for a trainer with Megatron's layers; empty where the driver's default is to count."""
    is_split = layout.tensor_parallel > 1 or layout.context_parallel > 1
    is_fused = layout.expert_parallel > 1 and layout.expert_dispatcher in FUSED_DISPATCHERS
    overlaps_experts = "overlap-moe-expert-parallel-comm" in option_names(layout.of_trial.options)
    if chip_of(accelerator) in BLACKWELL:
        return MANY if is_split or is_fused or overlaps_experts else {}
    if overlaps_experts:
        return MANY
    if layout.zero_stage > 1:
        return {}
    return MANY if is_fused and not is_split else ONE


def refused_connections(layout: Layout) -> dict[str, str]:
    """The value that Megatron-LM refuses: one connection with Megatron-FSDP, on every device."""
    return ONE if layout.zero_stage > 1 else {}
