"""Step time of layouts and its breakdown. Pure; numpy. docs/cost_model.md derives it.

A micro-batch on the slowest stage takes as long as its device computes, or as its host launches kernels. A step is that
times the number of micro-batches, the pipeline's fill and drain (Narayanan et al., arXiv 2104.04473, section 2.2), the
messages between stages, the data-parallel collectives, and the optimizer step.

A few constants (`TERMS`) multiply the terms, each a factor on the data sheet's speed. Their priors, and how trials
update them, are in `search_spaces/cost_model/posterior.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np

from search_spaces.cost_model.attention import fused_slowdown, sink_seconds
from search_spaces.cost_model.expert_time import (
    awaited_share,
    dispatch_seconds,
    expert_launch_s,
    gathering_mlps,
    moved_bytes,
)
from search_spaces.cost_model.machine_speed import HOST_GB_PER_S, OVERLAPPED, MachineSpeed, products_share
from search_spaces.cost_model.memory import (
    LayerActivations,
    element_bytes,
    engine_column,
    gathered_weight_bytes,
    reduced_gradient_bytes,
    sums_whole_gradients,
    tokens_of_rank,
)
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.hardware.arithmetic import speedup_over_fp16
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.groups import RankGroups
from search_spaces.layouts.layout import CHOICES, modules_of
from search_spaces.layouts.mesh import RankMesh
from search_spaces.layouts.placement import table_groups
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape

ON_DEVICE = ("matmul", "memory_traffic", "tensor", "tensor_latency")
PER_STEP = ("pipeline", "pipeline_latency", "data_parallel", "data_latency", "optimizer", "offload", "step")
TERMS = (*ON_DEVICE, "launches", "sharded", *PER_STEP)
"""Terms of a step's time. `launches` are the host's and `sharded` is what ZeRO 3 gathers and reduces: both overlap the
device's work, and count where they take longer."""

_LAUNCHES, _SHARDED = len(ON_DEVICE), len(ON_DEVICE) + 1
_EXCHANGES = slice(ON_DEVICE.index("tensor"), _LAUNCHES)
"""Terms of the communication inside layers."""
EXCHANGING = ("tensor", "context", "expert")
"""Groups that communicate inside layers, whose constants are the same."""


@dataclass(frozen=True)
class StepTerms:
    """Seconds with every constant at 1. `micro_batch` is of one on the slowest stage, of shape (layouts, len(ON_DEVICE)
    + 2), launches and sharded last; `exchanges` are its seconds of the terms in `_EXCHANGES` by groups, of shape
    (layouts, len(EXCHANGING), 2); `micro_batches` counts those of a step, `fill` those that the other stages add;
    `per_step` is of a whole step, of shape (layouts, len(PER_STEP))."""

    micro_batch: np.ndarray
    exchanges: np.ndarray
    micro_batches: np.ndarray
    fill: np.ndarray
    per_step: np.ndarray

    @classmethod
    def of(cls, model: ModelShape, cluster: Cluster, layouts: LayoutTable) -> StepTerms:
        if cluster.domain_nodes == 1 or not len(layouts):
            return cls._on(model, MachineSpeed.of(cluster, cluster.num_nodes), layouts)
        sizes, size_of_row = np.unique(layouts["num_nodes"], return_inverse=True)
        rows = [np.flatnonzero(size_of_row == index) for index in range(len(sizes))]
        machines = [MachineSpeed.of(cluster, int(size)) for size in sizes]
        parts = [cls._on(model, machine, layouts.take(which)) for machine, which in zip(machines, rows, strict=True)]
        return cls.concatenate(parts).take(np.argsort(np.concatenate(rows)))

    @classmethod
    def _on(cls, model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> StepTerms:
        (layer, exchanges), head = _layer_seconds(model, machine, layouts), _head_seconds(model, machine, layouts)
        stages = StageTable.ends(model, layouts)
        slowest = _slowest_stage(stages, layer, head)
        rows = np.arange(len(layouts))
        layers, heads = stages.layers[rows, slowest], stages.has_head[rows, slowest]
        micro_batch = layers[:, None] * layer + heads[:, None] * head
        others = (model.num_layers - layers)[:, None] * layer + (1 - heads)[:, None] * head
        sharded = _sharded_seconds(model, machine, layouts)
        return cls(
            np.concatenate([micro_batch, sharded[:, None]], axis=1),
            exchanges=layers[:, None, None] * exchanges,
            micro_batches=layouts["grad_accum_steps"].astype(float),
            fill=_device(others) / _device(micro_batch) / layouts["virtual_pipeline_stages"] * _share_of_fill(layouts),
            per_step=_per_step_seconds(model, machine, layouts, stages)
            + _OFFLOAD * _copied_seconds(model, machine, layouts, _device(micro_batch))[:, None],
        )

    @classmethod
    def concatenate(cls, parts: Sequence[StepTerms]) -> StepTerms:
        """The layouts of all parts, in order."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def __len__(self) -> int:
        return len(self.micro_batches)

    def take(self, rows: np.ndarray) -> StepTerms:
        """The layouts of a mask or of indices, in that order."""
        return StepTerms(*(getattr(self, field.name)[rows] for field in fields(self)))

    def seconds(self, constants: np.ndarray) -> np.ndarray:
        """Step times: (layouts,) for constants of shape (len(TERMS),), (draws, layouts) for (draws, len(TERMS))."""
        micro_batch = _smooth_max(*self._concurrent_s(constants))
        return micro_batch * (self.micro_batches + self.fill) + constants[..., _SHARDED + 1 :] @ self.per_step.T

    def parts(self, constants: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds of a step by part, the contract's `time_s`, each of shape (layouts,)."""
        device, host, sharded = self._concurrent_s(constants)
        exchanges = self.exchanges @ constants[_EXCHANGES]
        alone, micro_batch = _smooth_max(device, host), _smooth_max(device, host, sharded)
        per_step = dict(zip(PER_STEP, (constants[_SHARDED + 1 :] * self.per_step).T, strict=True))
        waited_for = (micro_batch - alone) * self.micro_batches
        return {
            "compute": (alone - exchanges.sum(axis=1)) * self.micro_batches,
            **dict(zip(EXCHANGING, exchanges.T * self.micro_batches, strict=True)),
            "pipeline": per_step["pipeline"] + per_step["pipeline_latency"],
            "data_parallel": per_step["data_parallel"] + per_step["data_latency"] + waited_for,
            "bubble": micro_batch * self.fill,
            "optimizer": per_step["optimizer"] + per_step["step"],
            "offload": per_step["offload"],
        }

    def _concurrent_s(self, constants: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seconds of a micro-batch on the device, on the host and on the network, which overlap."""
        on_device = constants[..., :_LAUNCHES] @ self.micro_batch[:, :_LAUNCHES].T
        launches = constants[..., _LAUNCHES, None] * self.micro_batch[:, _LAUNCHES]
        return on_device, launches, constants[..., _SHARDED, None] * self.micro_batch[:, _SHARDED]


def _share_of_fill(layouts: LayoutTable) -> np.ndarray:
    """Share of an interleaved schedule's fill and drain that is left where backward passes of weights fill it.

    Of (p - 1) (F + B), where passes forward, backward to inputs and to weights take as long: two thirds with DualPipeV,
    (p - 1) (F&B + B - 3 W) (deepseek-ai/DualPipe, README); a third with ZBV, the first forward passes, since the update
    waits for all ranks (Qi et al., arXiv 2401.10241, section 6).
    """
    shares = {"dualpipev": 2 / 3, "zbv": 1 / 3}
    return np.select([layouts.equals("pipeline_schedule", name) for name in shares], [*shares.values()], 1.0)


def _smooth_max(*seconds: np.ndarray) -> np.ndarray:
    """Smooth maximum: where two are nearly equal, each waits for the other at times."""
    return sum(each**4 for each in seconds) ** 0.25


def _device(micro_batch: np.ndarray) -> np.ndarray:
    return micro_batch[:, :_LAUNCHES].sum(axis=1)


def _slowest_stage(stages: StageTable, layer: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Index of the slowest of the selected stages, for each layout."""
    seconds = stages.layers * _device(layer)[:, None] + stages.has_head * _device(head)[:, None]
    return seconds.argmax(axis=1)


def _layer_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward of a micro-batch through one layer: matmul, memory traffic, tensor, latency, launches.

    A mean over the layers where some are recomputed. The MLP has half of a layer's launches. Second, the layer's part
    of `StepTerms.exchanges`.
    """
    tensor, tokens = layouts["tensor_parallel"], tokens_of_rank(model, layouts)
    shares = RecomputedShares.of(model, layouts)
    passes = 3 + shares.layers
    layer = model.active_layer_parameters
    linear = 2 * tokens * (layer * passes + shares.parameters(model))
    in_16_bits = 2 * tokens * layer * layouts.of_recipe(lambda recipe: recipe.products_in_16_bits)
    quantized = _quantized_share(model, layouts) * (linear - in_16_bits)
    saved = quantized * layouts.of_recipe(lambda r: 1 - 1 / speedup_over_fp16(machine.accelerator, r.arithmetic))
    scores = 2 * tokens * model.scored_size * _positions_scored(model, layouts, shares)
    activations = LayerActivations.of(model, layouts)
    accessed = activations.whole * (_ACCESSES_PER_BYTE + shares.layers + shares.ops) + activations.rewritten
    accessed = accessed * _eager_traffic(layouts)
    accessed = accessed + tokens * _scaled_bytes(model, layouts, shares) + moved_bytes(model, layouts, shares)
    loss = _matmul_slowdown(model, machine, layouts)
    multiplied = (linear - saved) * loss + scores * _attention_slowdown(model, machine, layouts, loss)
    launched = _launch_seconds(model, machine, layouts)
    exchanges = _exchange_seconds(model, machine, layouts, shares, launched)
    seconds = np.stack(
        [
            (multiplied / machine.flops(layouts) + sink_seconds(model, layouts, tokens)) / tensor,
            accessed / machine.memory_bytes_per_s,
            *exchanges.sum(axis=1).T,
            (passes + shares.mlps(model) / 2 + shares.ops) * launched,
        ],
        axis=1,
    )
    return seconds, exchanges


def _exchange_seconds(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares, launched: np.ndarray
) -> np.ndarray:
    """Communication of a micro-batch inside one layer, a mean over the layers: `StepTerms.exchanges`.

    The MLP has one of a layer's two collectives of tensor-parallel ranks. `launched` are the host's seconds of a pass.
    """
    tensor, tokens = layouts["tensor_parallel"], tokens_of_rank(model, layouts)
    collectives = 2 + shares.layers + (2 + shares.layers + shares.mlps(model)) * gathering_mlps(model, layouts)
    exchanged = collectives * tokens * model.hidden_size * element_bytes(layouts)
    stride = layouts.per_mesh(RankMesh.stride, "tp")
    rate = machine.bus_bytes_per_s(tensor, stride, layouts["sequence_parallel"] > 0)
    exposed = np.where(layouts["tensor_parallel_overlap"], OVERLAPPED, 1)
    awaited = (1 + shares.layers) * awaited_share(model, machine) * launched
    of_tensor = [
        2 * (tensor - 1) / tensor * exchanged / rate * exposed,
        collectives * machine.latency_s(tensor, stride),
    ]
    of_context = [_context_seconds(model, machine, layouts, shares), np.zeros(len(layouts))]
    of_experts = [dispatch_seconds(model, machine, layouts, shares), awaited]
    return np.stack([np.stack(of_groups, axis=1) for of_groups in (of_tensor, of_context, of_experts)], axis=1)


def _eager_traffic(layouts: LayoutTable) -> np.ndarray:
    return np.where(layouts["torch_compile"] > 0, 1, engine_column(layouts, lambda engine: engine.eager_traffic))


def _scaled_bytes(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Bytes that are moved to scale a token's operands of 8- and 4-bit products in one layer: inputs in each forward
    pass, gradients of outputs in the backward pass."""
    tensor, experts = layouts["tensor_parallel"], model.num_expert_layers / model.num_layers
    whole = model.hidden_size * (2 + experts * ((model.experts_per_token or 1) - 1))
    widths_in = 2 if model.gated_mlp else 1
    inputs = whole + (model.attention_output_size + model.active_mlp_width) / tensor
    outputs = whole + (model.query_size + 2 * model.key_value_size + widths_in * model.active_mlp_width) / tensor
    elements = inputs * (1 + shares.layers) + outputs
    return layouts.of_recipe(lambda recipe: recipe.moved_bytes) * elements * _quantized_share(model, layouts)


def _quantized_share(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Share of the layers' products that are in 8 or 4 bits, if all three of a linear layer are."""
    routed = (model.experts_per_token or 0) * model.parameters_per_expert * model.num_expert_layers / model.num_layers
    without_experts = layouts.of_recipe(lambda recipe: not recipe.has_experts)
    return layouts.quantized_share(model.num_layers) * (1 - without_experts * routed / model.active_layer_parameters)


def _shards(machine: MachineSpeed, layouts: LayoutTable) -> RankGroups:
    """Groups that shard parameters outside experts. Where stages are between their context- and their data-parallel
    ranks, a link domain has the former side by side: as few groups share its links as it has of these."""
    shards, context = table_groups(layouts, "shards"), layouts["context_parallel"]
    is_cut = layouts.equals("rank_order", "tp-pp-dp") & (context > 1)
    beside = np.maximum(layouts["tensor_parallel"], machine.links.ranks_per_domain(machine.gpus_per_node) // context)
    return RankGroups(shards.ranks, np.where(is_cut, np.minimum(shards.stride, beside), shards.stride))


def _context_seconds(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, shares: RecomputedShares
) -> np.ndarray:
    """Exchange between context-parallel ranks for one layer.

    A ring passes keys and values on while attention works on others, and their gradients in the backward pass (Liu et
    al., arXiv 2310.01889, section 3); gathering moves as much, exposed. All-to-alls exchange positions for heads, of
    queries, keys, values and outputs (Jacobs et al., arXiv 2309.14509, section 3).
    """
    count = layouts["context_parallel"]
    is_hierarchy = layouts.equals("context_transport", "a2a_p2p") & (count > 1)
    inner, outer = np.where(is_hierarchy, (layouts["context_inner"], count // layouts["context_inner"]), 1)
    stride = layouts.per_mesh(RankMesh.stride, "cp")
    of_token = element_bytes(layouts) * tokens_of_rank(model, layouts) / layouts["tensor_parallel"]
    keys, heads = 2 * of_token * model.key_value_size, 2 * of_token * (model.query_size + model.key_value_size)
    passes = 1 + 2 + shares.layers
    every = np.ones_like(count, dtype=bool)
    rate = machine.bus_bytes_per_s(count, stride, every)
    ring = passes * (count - 1) * keys / rate
    exchanged = (passes - 1) * heads * (count - 1) / count / rate
    inside = (passes - 1) * heads * (inner - 1) / inner / machine.bus_bytes_per_s(inner, stride, every)
    of_inner = passes * (outer - 1) * keys / machine.bus_bytes_per_s(outer, stride * inner, every)
    seconds = {
        "p2p": ring * OVERLAPPED,
        "all_gather": ring,
        "a2a": exchanged,
        "a2a_p2p": inside + of_inner * OVERLAPPED,
    }
    return np.select([layouts.equals("context_transport", word) for word in seconds], [*seconds.values()]) * (count > 1)


def _launch_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Host time to launch a pass of one layer, a mean over the layers, without what CUDA graphs launch in its place;
    that of the graphs, one a part, is left out.

    Half a layer's kernels are attention's. Of those of experts routing and preprocessing are taken to be an eighth
    each.
    """
    layer = LAYER_LAUNCH_S * np.where(layouts["torch_compile"] > 0, 0.5, 1)
    share, more = model.num_expert_layers / model.num_layers, expert_launch_s(model, machine, layouts)
    experts = share * (layer / 2 + more)
    parts = {"attn": layer / 2, "mlp": (1 - share) * layer / 2}
    parts |= dict.fromkeys(("moe_router", "moe_preprocess"), experts / 8)
    captured = sum(seconds * _captures(layouts, module) for module, seconds in parts.items())
    is_whole = layouts.equals("cuda_graphs", "full_iteration")
    launched = layer + share * more - captured + _collectives(layouts) * COLLECTIVE_LAUNCH_S
    return np.where(is_whole, 0, launched)


def _captures(layouts: LayoutTable, module: str) -> np.ndarray:
    """1 for layouts whose graphs capture the module, else 0."""
    has_module = [module in modules_of(word) for word in CHOICES["cuda_graphs"]]
    return np.array(has_module, dtype=float)[layouts["cuda_graphs"]]


def _collectives(layouts: LayoutTable) -> np.ndarray:
    """Collectives per layer and pass: two all-reduces, with sequence parallelism an all-gather and a reduce-scatter for
    each; with ZeRO 3 one more for its weights, or for each of its parts'."""
    gathers = engine_column(layouts, lambda engine: _GATHERS_PER_LAYER if engine.gathers_each_parameter else 1)
    of_tensor = np.where(layouts["tensor_parallel"] > 1, np.where(layouts["sequence_parallel"] > 0, 4, 2), 0)
    return of_tensor + np.where(layouts["zero_stage"] == 3, gathers, 0)


def _matmul_slowdown(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Slowdown of products relative to large ones, by the model's width and by the trainer.

    None on a CPU: products as narrow as 128 reach the rate of large ones there (`parlay calibrate` shows it).
    """
    loss = 1 + (HALF_SPEED_HIDDEN / model.hidden_size if machine.accelerator.peak_flops else 0)
    return loss * engine_column(layouts, lambda engine: engine.matmul_slowdown)


HALF_SPEED_HIDDEN = 400
"""Hidden size at which products reach half the rate of large ones, fitted to Megatron-LM's models from 1.7B to 1T
(Narayanan et al., arXiv 2104.04473, table 1)."""
_ACCESSES_PER_BYTE = 4
"""Reads and writes of each byte of an activation: written, read by the next operation, and both again in the backward
pass with gradients of its size."""
LAYER_LAUNCH_S = 0.4e-3
"""Host time to launch one layer's kernels, 30 or so at 10 to 15 us each in eager PyTorch."""
_GATHERS_PER_LAYER = 8
"""Modules of a layer that DeepSpeed's ZeRO 3 gathers: two norms, attention's two products, the MLP's two, and their
containers."""
COLLECTIVE_LAUNCH_S = 0.05e-3
"""Host time to launch one collective: its tensors, its process group, its stream. An estimate."""


def _attention_slowdown(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, of_products: np.ndarray
) -> np.ndarray:
    """Slowdown of attention's scores relative to large products: without a known kernel that of a layer's products."""
    fused = fused_slowdown(model, machine.accelerator, products_share(machine.accelerator), layouts)
    is_plain = layouts.equals("attention_kernel", "math")
    return of_products if fused is None else np.where(is_plain, of_products, fused)


def _positions_scored(model: ModelShape, layouts: LayoutTable, shares: RecomputedShares) -> np.ndarray:
    """Positions for which a token's two products of attention are computed in a step, a mean over the layers.

    The plain products are those of all positions of the sequence, or document. A fused kernel skips what a causal mask
    or a window hides, and recomputes the first product in its backward pass (Dao, arXiv 2307.08691).
    """
    passes = 3 + shares.layers
    plain = (passes + shares.core_attention) * model.attention_length
    fused = (passes + 0.5) * model.causal_positions / model.num_layers
    return np.where(layouts.equals("attention_kernel", "math"), plain, fused)


def _head_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Forward and backward of the head and the loss, which are never recomputed."""
    tensor, tokens = layouts["tensor_parallel"], tokens_of_rank(model, layouts)
    logits = tokens * model.vocab_size / tensor
    nothing = np.zeros(len(layouts))
    return np.stack(
        [
            3 * 2 * logits * model.hidden_size / machine.flops(layouts),
            logits * (element_bytes(layouts) + 4) * _ACCESSES_PER_BYTE / machine.memory_bytes_per_s,
            nothing,
            nothing,
            np.where(layouts.equals("cuda_graphs", "full_iteration"), 0, LAYER_LAUNCH_S),
        ],
        axis=1,
    )


def _sharded_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """ZeRO 3's traffic of a micro-batch: weights gathered for each pass, gradients reduced (Rajbhandari et al., arXiv
    1910.02054, section 7).

    The ranks of a node gather a layer with all its adapters. Where each parameter is a collective of its own, these
    reach between nodes the bandwidth of one adapter: nothing else explains DeepSpeed's steps of 175B and 530B on 384 to
    2240 GPUs (arXiv 2104.04473, table 2).
    """
    shards = _shards(machine, layouts)
    count, stride = shards.ranks, shards.stride
    reduced = np.where(sums_whole_gradients(layouts), 0, reduced_gradient_bytes(layouts))
    width = 2 * gathered_weight_bytes(layouts) + reduced
    pair = 1e9 * machine.per_group(
        lambda ranks, apart: machine.links.p2p_gb_per_s(ranks, apart, machine.gpus_per_node), count, stride
    )
    ranks_inside = machine.links.ranks_per_domain(machine.gpus_per_node)
    is_slow = engine_column(layouts, lambda engine: engine.gathers_each_parameter).astype(bool)
    adapter = np.where(layouts.per_mesh(RankMesh.crosses_nodes, "dp", ranks_inside) & is_slow, pair, np.inf)
    rate = np.minimum(machine.bus_bytes_per_s(count, stride, np.ones_like(count, dtype=bool)), adapter)
    dense = (model.parameters - model.routed_parameters) / layouts["tensor_parallel"] * (count - 1) / count
    copies = layouts.expert_shards
    routed = model.routed_parameters / layouts.ranks_of_expert_layer * (copies - 1) / copies
    return np.where(layouts["zero_stage"] == 3, (dense + routed) * width / rate, 0)


def _per_step_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, stages: StageTable) -> np.ndarray:
    """Seconds once per step rather than per micro-batch, in the order of `PER_STEP`."""
    dense, routed = stages.of_rank(layouts).max(axis=1), stages.routed_of_rank(layouts).max(axis=1)
    is_sharded, is_offloaded = layouts["zero_stage"] >= 1, layouts.equals("offload", "optimizer")
    updated = dense / np.where(is_sharded, layouts.shards, 1) + routed / np.where(is_sharded, layouts.expert_shards, 1)
    of_dense = _Reduced(dense, _shards(machine, layouts))
    of_routed = _Reduced(routed, table_groups(layouts, "expert_shards"))
    on_host = updated * (_OFFLOADED_BYTES / machine.host_bytes_per_s + _UPDATE_BYTES / (HOST_GB_PER_S * 1e9))
    of_both = [_between_data_ranks(model, machine, layouts, part) for part in (of_dense, of_routed)]
    data_volume, data_latency = np.sum(of_both[: 1 + (model.num_experts is not None)], axis=0)
    return np.stack(
        [
            *_between_stages(model, machine, layouts),
            data_volume,
            data_latency,
            np.where(is_offloaded, 0, updated * _UPDATE_BYTES / machine.memory_bytes_per_s),
            np.where(is_offloaded, on_host, 0),
            np.full(len(layouts), STEP_S),
        ],
        axis=1,
    )


_OFFLOAD = np.array([name == "offload" for name in PER_STEP])


def _copied_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, device_s: np.ndarray) -> np.ndarray:
    """Seconds of a step in which the device waits for activations on their way to the host, which the forward pass
    overlaps, and back, which the backward pass does."""
    kept = LayerActivations.of(model, layouts).kept * np.minimum(layouts["offloaded_layers"], model.num_layers)
    copied = kept / machine.host_bytes_per_s
    waits = np.maximum(0, copied - device_s / 3) + np.maximum(0, copied - device_s * 2 / 3)
    return layouts["grad_accum_steps"] * waits


_UPDATE_BYTES = 30
"""Bytes read and written per parameter by a fused Adam with fp32 masters."""
_OFFLOADED_BYTES = 6
"""Bytes per parameter over the host link: an fp32 gradient to the host, a 16-bit weight back."""
STEP_S = 0.02
"""A trainer's fixed work per step: norms, logs, a wait for the device."""


def _between_stages(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> tuple[np.ndarray, np.ndarray]:
    """Volume and latency of the messages between stages, for each micro-batch and chunk, forward and backward.

    With sequence parallelism a rank has only its own positions; Megatron-LM also splits the rest over the
    tensor-parallel ranks (Narayanan et al., arXiv 2104.04473, section 4.1).
    """
    count, chunks = layouts["pipeline_parallel"], layouts["virtual_pipeline_stages"]
    stride = layouts.per_mesh(RankMesh.stride, "pp")
    rate = machine.per_group(
        lambda ranks, apart: machine.links.p2p_gb_per_s(ranks, apart, machine.gpus_per_node), count, stride
    )
    is_split = (layouts["sequence_parallel"] > 0) | engine_column(layouts, lambda engine: engine.splits_p2p)
    split = np.where(is_split, layouts["tensor_parallel"], 1)
    size = tokens_of_rank(model, layouts) * model.hidden_size * element_bytes(layouts) / split
    each = engine_column(layouts, lambda engine: 4 if engine.has_blocking_p2p else 2)
    messages = np.where(count > 1, each * chunks * (layouts["grad_accum_steps"] + count - 1), 0)
    return messages * size / (rate * 1e9), messages * MESSAGE_S


MESSAGE_S = 100e-6
"""Time between a stage's kernel and the next stage's: a send, a receive, and waiting for each other."""


class _Reduced(NamedTuple):
    """Parameters of a rank whose gradients are reduced over groups of ranks."""

    parameters: np.ndarray
    groups: RankGroups


def _between_data_ranks(
    model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, reduced: _Reduced
) -> tuple[np.ndarray, np.ndarray]:
    """Volume and latency of the gradient reductions and weight gathers over the data-parallel ranks.

    ZeRO 2 reduces after each micro-batch, except in a pipeline and where ranks add up whole gradients. ZeRO 3's traffic
    of a micro-batch is in `_sharded_seconds`. Replicas then add up their shards of the gradients.
    """
    parameters, count, stride = reduced.parameters, reduced.groups.ranks, reduced.groups.stride
    zero, steps = layouts["zero_stage"], layouts["grad_accum_steps"]
    repeats = (zero >= 2) | engine_column(layouts, lambda engine: engine.reduces_every_micro_batch)
    whole = sums_whole_gradients(layouts)
    reductions = np.where(repeats & (layouts["pipeline_parallel"] == 1) & ~whole, steps, 1)
    gradients = reductions * parameters * reduced_gradient_bytes(layouts)
    gathered = (zero >= 1) & (zero < 3)
    sent = (1 + (zero == 0)) * gradients + gathered * parameters * gathered_weight_bytes(layouts)
    overlaps = (
        (layouts["overlap_comm"] > 0)
        | (zero >= 2)
        | engine_column(layouts, lambda engine: engine.always_overlaps_reductions)
    )
    exposed = np.where(overlaps, OVERLAPPED, 1)
    volume = (
        ((zero < 3) | whole) * exposed * sent * (count - 1) / count / machine.bus_bytes_per_s(count, stride, zero >= 1)
    )
    collectives = np.where(zero == 3, 3 * steps * model.num_layers, 1 + (zero > 0))
    latency = np.where(count > 1, collectives * machine.latency_s(count, stride), 0)
    of_replicas = table_groups(layouts, "replicas")
    replicas, apart = of_replicas.ranks, of_replicas.stride
    between = 2 * exposed * gradients / count * (replicas - 1) / replicas
    volume = volume + between / machine.bus_bytes_per_s(replicas, apart, np.zeros_like(zero, dtype=bool))
    return volume, latency + np.where(replicas > 1, reductions * machine.latency_s(replicas, apart), 0)
