"""Time of sending tokens to their experts and back: messages, copies, and what the host waits for. Pure; numpy."""

from __future__ import annotations

import numpy as np

from search_spaces.cost_model.machine_speed import OVERLAPPED, MachineSpeed
from search_spaces.cost_model.memory import element_bytes, tokens_of_rank
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.layouts.layout import FUSED_DISPATCHERS
from search_spaces.layouts.placement import table_groups
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape


def dispatch_seconds(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> np.ndarray:
    """Messages that send tokens to their experts' ranks and back, for one layer, a mean over the layers.

    Two for each pass, of hidden states (Lepikhin et al., arXiv 2006.16668, section 3.2), again where experts or whole
    layers are recomputed. Each rank sends what leaves its link domain through its own adapter, or its share of those
    of the node. Half is hidden where another micro-batch computes meanwhile.
    """
    groups = table_groups(layouts, "expert")
    count, stride = groups.ranks, groups.stride
    # Groups that do not divide a domain are cut anywhere: the smallest part decides.
    ranks_inside = np.gcd(machine.links.ranks_per_domain(machine.gpus_per_node), groups.block)
    inside = np.maximum(1, np.minimum(count, ranks_inside // stride))
    far = 1e9 * machine.per_group(
        lambda ranks, apart: machine.links.p2p_gb_per_s(ranks, apart, machine.gpus_per_node), count, stride
    )
    if machine.links.fabric is not None:
        far = np.minimum(far, 1e9 * machine.links.fabric.nic_gb_per_s / machine.gpus_per_node)
    every = np.ones_like(count, dtype=bool)
    near_copies, far_copies = _copies_sent(layouts, model.experts_per_token or 0, count, inside)
    sent = near_copies / machine.bus_bytes_per_s(inside, stride, every) + far_copies / far
    gathered = (count - 1) / machine.bus_bytes_per_s(count, stride, every)
    seconds_per_byte = np.where(layouts.equals("expert_dispatcher", "allgather"), gathered, sent)
    is_hidden = (layouts["expert_overlap"] > 0) & (layouts["grad_accum_steps"] > 1)
    exposed = np.where(is_hidden, OVERLAPPED, 1)
    return 2 * _passes(shares) * exposed * seconds_per_byte * _hidden_bytes(model, layouts)


def _copies_sent(
    layouts: LayoutTable, experts_per_token: int, count: np.ndarray, inside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Copies of a token that leave its rank within a link domain, and those that leave the domain.

    All-to-alls send one to each of its experts. DeepEP and HybridEP send one to each domain with any of them, and there
    one to each rank (deepseek-ai/DeepEP, README), of which random experts are expected to have R (1 - (1 - 1/R)^k).
    """

    def having_experts(groups: np.ndarray) -> np.ndarray:
        return groups * (1 - (1 - 1 / groups) ** experts_per_token)

    domains = count / inside
    is_fused = np.logical_or.reduce([layouts.equals("expert_dispatcher", word) for word in FUSED_DISPATCHERS])
    near = np.where(is_fused, having_experts(count), experts_per_token * inside / count) * (inside - 1) / inside
    far = np.where(is_fused, having_experts(domains), experts_per_token) * (domains - 1) / domains
    return near, far


def moved_bytes(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that a rank reads and writes in one layer to order tokens by expert and back, a mean over the layers.

    Copies of the hidden states of a token's experts, besides those that the layer keeps: sorted by rank, received and
    sorted by expert, and the same way back, with all-to-alls (megatron/core/transformer/moe/token_dispatcher.py); two
    fewer where a library's kernel sorts what it sends, or where a rank has all tokens; sorted once where it has all
    experts.
    """
    copies = np.where(layouts.equals("expert_dispatcher", "alltoall"), 5, 3)
    copies = np.where(layouts["expert_parallel"] > 1, copies, 1)
    of_copy = (model.experts_per_token or 0) * _hidden_bytes(model, layouts)
    return 2 * _passes(shares) * copies * of_copy


def gathering_mlps(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Share of the layers whose MLP is between tensor-parallel collectives: not those with whole experts on a rank,
    which sends each its own tokens, unless a shared expert is split."""
    has_whole_experts = (layouts["expert_tensor_parallel"] == 1) & (model.shared_expert_ffn_hidden_size is None)
    return 1 - has_whole_experts * model.num_expert_layers / model.num_layers


def expert_launch_s(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Host time of a pass to launch what a layer's experts have more kernels than an MLP. None on a CPU, which computes
    them itself."""
    of_rank = (model.num_experts or 0) / layouts["expert_parallel"]
    return EXPERT_LAUNCH_S * of_rank * bool(machine.accelerator.peak_flops)


EXPERT_LAUNCH_S = 0.12e-3
"""Host time of a pass to launch the products of one expert of a rank and what is between them: nine kernels
(docs/cost_model.md), a thirtieth of `LAYER_LAUNCH_S` each."""


def awaited_share(model: ModelShape, machine: MachineSpeed) -> float:
    """Share of a forward pass's launches for which the device waits.

    The host reads how many tokens each expert has before it launches more of a layer (`tokens_per_expert.tolist()` in
    megatron/core/transformer/moe/experts.py), so that nothing is launched ahead in layers with experts.
    """
    return model.num_expert_layers / model.num_layers if machine.accelerator.peak_flops else 0.0


def _passes(shares: RecomputedShares) -> np.ndarray:
    return 2 + shares.layers + shares.modules["moe"]


def _hidden_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of a rank's hidden states, times the share of layers with experts."""
    tokens = tokens_of_rank(model, layouts) / layouts["tensor_parallel"]
    return tokens * model.hidden_size * element_bytes(layouts) * model.num_expert_layers / model.num_layers
