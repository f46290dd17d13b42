"""Seconds of a micro-batch in which ranks communicate inside one layer, a mean over the layers: tensor, context and
expert parallelism. Pure; numpy."""

from __future__ import annotations

import numpy as np

from search_spaces.cost_model.constants import Key
from search_spaces.cost_model.machine_speed import MachineSpeed
from search_spaces.cost_model.memory import element_bytes, tokens_of_rank
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.hardware.links import FABRIC_KINDS, NIC_EFFICIENCY
from search_spaces.layouts.layout import FUSED_DISPATCHERS, INNER_CONTEXT
from search_spaces.layouts.placement import table_groups
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape

EXPOSED = 0.5
"""Exposed share of communication that overlaps computation."""


def tensor_exchange(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> dict[Key, np.ndarray]:
    """Collectives of tensor-parallel ranks: two a pass, of which the MLP has one."""
    tensor = layouts["tensor_parallel"]
    count = 2 + shares.layers + (2 + shares.layers + shares.mlps(model)) * _gathering_mlps(model, layouts)
    size = count * tokens_of_rank(model, layouts) * model.hidden_size * element_bytes(layouts)
    stride = table_groups(layouts, "tensor").stride
    rate = machine.bus_bytes_per_s(tensor, stride, layouts["sequence_parallel"] > 0)
    seconds = 2 * (tensor - 1) / tensor * size / rate
    is_hidden = layouts["tensor_parallel_overlap"] > 0
    return {
        ("tensor", ("collectives",)): np.where(is_hidden, 0, seconds),
        ("tensor", ("collectives", "overlap")): is_hidden * EXPOSED * seconds,
        ("tensor", ("latency",)): count * machine.latency_s(tensor, stride),
    }


def context_exchange(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> dict[Key, np.ndarray]:
    """Exchange between context-parallel ranks.

    A ring passes keys and values on while attention works on others, and their gradients in the backward pass (Liu et
    al., arXiv 2310.01889, section 3); gathering moves as much, exposed. All-to-alls exchange positions for heads, of
    queries, keys, values and outputs (Jacobs et al., arXiv 2309.14509, section 3).
    """
    count, words = layouts["context_parallel"], "context_transport"
    is_hierarchy = layouts.equals(words, "a2a_p2p") & (count > 1)
    inner, outer = (np.where(is_hierarchy, ranks, 1) for ranks in (INNER_CONTEXT, count // INNER_CONTEXT))
    stride = table_groups(layouts, "context").stride
    of_token = element_bytes(layouts) * tokens_of_rank(model, layouts) / layouts["tensor_parallel"]
    keys, heads = 2 * of_token * model.key_value_size, 2 * of_token * (model.query_size + model.key_value_size)
    passes = 3 + shares.layers
    rate = machine.bus_bytes_per_s(count, stride)
    ring = passes * (count - 1) * keys / rate
    exchanged = (passes - 1) * heads * (count - 1) / count / rate
    inside = (passes - 1) * heads * (inner - 1) / inner / machine.bus_bytes_per_s(inner, stride)
    of_inner = passes * (outer - 1) * keys / machine.bus_bytes_per_s(outer, stride * inner)
    exposed = {"all_gather": ring, "a2a": exchanged, "a2a_p2p": inside}
    hidden = {"p2p": ring, "a2a_p2p": of_inner}
    return {
        ("context", ("collectives",)): _by_word(layouts, words, exposed) * (count > 1),
        ("context", ("collectives", "overlap")): _by_word(layouts, words, hidden) * EXPOSED * (count > 1),
    }


def expert_exchange(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares, pass_launch_s: np.ndarray
) -> dict[Key, np.ndarray]:
    """Messages that send tokens to their experts' ranks and back, inside a link domain and across domains.

    Two for each pass, of hidden states (Lepikhin et al., arXiv 2006.16668, section 3.2), again where experts or whole
    layers are recomputed. Each rank sends what leaves its link domain through its own share of the node's adapters.
    The host reads how many tokens each expert has before it launches more (`tokens_per_expert.tolist()` in
    megatron/core/transformer/moe/experts.py), so the device waits for a forward pass's launches.
    """
    groups, fabric = table_groups(layouts, "expert"), machine.links.fabric
    count, stride = groups.ranks, groups.stride
    # Groups that do not divide a domain are cut anywhere: the smallest part decides.
    inside = np.maximum(1, np.minimum(count, np.gcd(machine.ranks_per_domain, groups.block) // stride))
    is_fused = np.logical_or.reduce([layouts.equals("expert_dispatcher", word) for word in FUSED_DISPATCHERS])
    is_gathered = layouts.equals("expert_dispatcher", "allgather")
    near_copies, far_copies = _copies_sent(model.experts_per_token or 0, count, inside, is_fused)
    size, messages = _hidden_bytes(model, layouts), 2 * _passes(shares)
    near = messages * size * near_copies / machine.bus_bytes_per_s(inside, stride)
    far = np.zeros(len(layouts))
    if fabric is not None:
        gpus, experts = machine.gpus_per_node, model.num_expert_layers / model.num_layers
        rate = 1e9 * np.where(is_fused, NIC_EFFICIENCY * fabric.nic_gb_per_s / gpus, fabric.all_to_all_rate(gpus))
        waits_s = 1e-6 * FABRIC_KINDS[fabric.kind].dispatch_us * is_fused * (count > inside) * experts
        far = messages * (size * far_copies / rate + waits_s)
    gathered = messages * size * (count - 1) / machine.bus_bytes_per_s(count, stride)
    awaited = (1 + shares.layers) * model.num_expert_layers / model.num_layers * machine.is_gpu
    return {
        ("expert", ("latency",)): awaited * pass_launch_s,
        ("expert", ("dispatch",)): np.where(is_gathered, gathered, near) * ~is_fused,
        ("expert", ("dispatch", "across_domains")): far * ~(is_fused | is_gathered),
        ("expert", ("dispatch", "fused_dispatch")): near * is_fused,
        ("expert", ("dispatch", "fused_dispatch", "across_domains")): far * is_fused,
    }


def sorted_bytes(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that a rank reads and writes in one layer to order tokens by expert and back.

    Copies of the hidden states of a token's experts, besides those that the layer keeps: sorted by rank, received and
    sorted by expert, and the same way back, with all-to-alls (megatron/core/transformer/moe/token_dispatcher.py); two
    fewer where a library's kernel sorts what it sends, or where a rank has all tokens; sorted once where it has all
    experts.
    """
    copies = np.where(layouts.equals("expert_dispatcher", "alltoall"), 5, 3)
    copies = np.where(layouts["expert_parallel"] > 1, copies, 1)
    return 2 * _passes(shares) * copies * (model.experts_per_token or 0) * _hidden_bytes(model, layouts)


def _by_word(layouts: LayoutTable, axis: str, seconds: dict[str, np.ndarray]) -> np.ndarray:
    return np.select([layouts.equals(axis, word) for word in seconds], [*seconds.values()], 0.0)


def _copies_sent(
    experts_per_token: int, count: np.ndarray, inside: np.ndarray, is_fused: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Copies of a token that leave its rank within a link domain, and those that leave the domain.

    All-to-alls send one to each of its experts. DeepEP and HybridEP send one to each domain with any of them, and there
    one to each rank (deepseek-ai/DeepEP, README), of which random experts are expected to have R (1 - (1 - 1/R)^k).
    """

    def having_experts(groups: np.ndarray) -> np.ndarray:
        return groups * (1 - (1 - 1 / groups) ** experts_per_token)

    domains = count / inside
    near = np.where(is_fused, having_experts(count), experts_per_token * inside / count) * (inside - 1) / inside
    far = np.where(is_fused, having_experts(domains), experts_per_token) * (domains - 1) / domains
    return near, far


def _gathering_mlps(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Share of the layers whose MLP is between tensor-parallel collectives: not those with whole experts on a rank,
    which sends each its own tokens, unless a shared expert is split."""
    has_whole_experts = (layouts["expert_tensor_parallel"] == 1) & (model.shared_expert_ffn_hidden_size is None)
    return 1 - has_whole_experts * model.num_expert_layers / model.num_layers


def _passes(shares: RecomputedShares) -> np.ndarray:
    return 2 + shares.layers + shares.modules["moe"]


def _hidden_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of a rank's hidden states, times the share of layers with experts."""
    tokens = tokens_of_rank(model, layouts) / layouts["tensor_parallel"]
    return tokens * model.hidden_size * element_bytes(layouts) * model.num_expert_layers / model.num_layers
