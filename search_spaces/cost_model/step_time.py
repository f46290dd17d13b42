"""Step time of layouts and its breakdown. Pure; numpy. docs/cost_model.md explains it.

A micro-batch on the slowest stage takes as long as its device computes, or as its host launches kernels. A step is that
times the number of micro-batches, the pipeline's fill and drain (Narayanan et al., arXiv 2104.04473, section 2.2), the
messages between stages, the data-parallel collectives, and the optimizer step.

A column of seconds is multiplied by its constants, each a factor on the data sheet's speed, and by `machine`. Their
priors, and how trials update them, are in `search_spaces/cost_model/posterior.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from search_spaces.adapters import BYTES_OF_4_BITS
from search_spaces.cost_model.constants import Columns, product_of
from search_spaces.cost_model.exchange_time import EXPOSED, context_exchange, expert_exchange, tensor_exchange
from search_spaces.cost_model.layer_time import (
    LAYER_LAUNCH_S,
    head_compute,
    layer_compute,
    layer_launch_s,
    pass_launch_s,
)
from search_spaces.cost_model.machine_speed import HOST_GB_PER_S, MachineSpeed
from search_spaces.cost_model.memory import (
    element_bytes,
    engine_column,
    gathered_weight_bytes,
    reduced_gradient_bytes,
    sums_whole_gradients,
    tokens_of_rank,
)
from search_spaces.cost_model.recomputation import RecomputedShares
from search_spaces.cost_model.stage_table import StageTable
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.groups import RankGroups
from search_spaces.layouts.placement import table_groups
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape

PARTS = ("compute", "tensor", "context", "expert", "pipeline", "data_parallel", "bubble", "optimizer", "offload")
"""Parts of a step in the contract's `time_s`."""


@dataclass(frozen=True)
class StepTerms:
    """Seconds of each layout with every constant at 1. `device`, `host_s` (launches) and `sharded_s` (what ZeRO 3
    gathers and reduces) are of a micro-batch on the slowest stage, and overlap; `micro_batches` counts those of a step,
    `fill` those that the other stages add; `per_step` is of a whole step."""

    device: Columns
    host_s: np.ndarray
    sharded_s: np.ndarray
    micro_batches: np.ndarray
    fill: np.ndarray
    per_step: Columns

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
        shares, pass_s = RecomputedShares.of(model, layouts), pass_launch_s(model, machine, layouts)
        layer = (
            layer_compute(model, machine, layouts, shares)
            | tensor_exchange(model, machine, layouts, shares)
            | context_exchange(model, machine, layouts, shares)
            | expert_exchange(model, machine, layouts, shares, pass_s)
        )
        head = head_compute(model, machine, layouts)
        layer_s, head_s = (sum(seconds.values(), np.zeros(1)) for seconds in (layer, head))
        stages = StageTable.ends(model, layouts)
        slowest = (stages.layers * layer_s[:, None] + stages.has_head * head_s[:, None]).argmax(axis=1)
        rows = np.arange(len(layouts))
        layers, heads = stages.layers[rows, slowest], stages.has_head[rows, slowest]
        device_s = layers * layer_s + heads * head_s
        others_s = (model.num_layers - layers) * layer_s + (1 - heads) * head_s
        is_launched = ~layouts.equals("cuda_graphs", "full_iteration")
        launches = layers * layer_launch_s(model, layouts, shares, pass_s) + heads * LAYER_LAUNCH_S * is_launched
        return cls(
            Columns.of({key: layers * seconds + heads * head.get(key, 0) for key, seconds in layer.items()}),
            launches,
            _sharded_seconds(model, machine, layouts),
            micro_batches=layouts["grad_accum_steps"].astype(float),
            fill=others_s / device_s / layouts["virtual_pipeline_stages"] * _share_of_fill(layouts),
            per_step=_per_step_seconds(model, machine, layouts, stages),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[StepTerms]) -> StepTerms:
        """The layouts of all parts, in order."""
        of_fields = ([getattr(part, f.name) for part in parts] for f in fields(cls))
        joined: list[Any] = [(Columns if isinstance(of[0], Columns) else np).concatenate(of) for of in of_fields]
        return cls(*joined)

    def __len__(self) -> int:
        return len(self.micro_batches)

    def take(self, rows: np.ndarray) -> StepTerms:
        """The layouts of a mask or of indices, in that order."""
        return StepTerms(*(getattr(self, field.name)[rows] for field in fields(self)))

    def seconds(self, constants: np.ndarray) -> np.ndarray:
        """Step times: (layouts,) for constants of shape (len(CONSTANTS),), (draws, layouts) for (draws,
        len(CONSTANTS))."""
        micro_batch = _smooth_max(self.device.seconds(constants), *self._beside_device(constants))
        return micro_batch * (self.micro_batches + self.fill) + self.per_step.seconds(constants)

    def sensitivity(self, constants: np.ndarray) -> np.ndarray:
        """Share of each constant in a step, of shape (layouts, len(CONSTANTS)): the relative saving from a smaller
        one."""
        less = np.tile(constants, (len(constants), 1))
        np.fill_diagonal(less, (1 - _DECREASE) * constants)
        return (1 - self.seconds(less) / self.seconds(constants)).T / _DECREASE

    def parts(self, constants: np.ndarray) -> dict[str, np.ndarray]:
        """Seconds of a step by part, the contract's `time_s`, each of shape (layouts,)."""
        device, host, sharded = self.device.seconds(constants), *self._beside_device(constants)
        alone, micro_batch = _smooth_max(device, host), _smooth_max(device, host, sharded)
        found: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(self)))
        for part, seconds in self.device.by_part(constants).items():
            found[part] += seconds * self.micro_batches
        for part, seconds in self.per_step.by_part(constants).items():
            found[part] += seconds
        found["compute"] += (alone - device) * self.micro_batches
        found["data_parallel"] += (micro_batch - alone) * self.micro_batches
        found["bubble"] += micro_batch * self.fill
        return {part: found[part] for part in PARTS}

    def _beside_device(self, constants: np.ndarray) -> Iterable[np.ndarray]:
        """Seconds of a micro-batch on the host and on ZeRO 3's network."""
        beside = {"launches": self.host_s, "sharded": self.sharded_s}
        return (product_of([name], constants)[..., None] * seconds for name, seconds in beside.items())


_DECREASE = 0.1


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
    return np.sqrt(np.sqrt(sum(np.square(np.square(each)) for each in seconds)))


def _sharded_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """ZeRO 3's traffic of a micro-batch: weights gathered for each pass, gradients reduced (Rajbhandari et al., arXiv
    1910.02054, section 7).

    The ranks of a node gather a layer with all its adapters. Where each parameter is a collective of its own, these
    reach between nodes the bandwidth of one adapter (DeepSpeed's steps of 175B and 530B on 384 to 2240 GPUs, arXiv
    2104.04473, table 2).
    """
    shards = _shards(machine, layouts)
    count, stride = shards.ranks, shards.stride
    reduced = np.where(sums_whole_gradients(layouts), 0, reduced_gradient_bytes(layouts))
    trained = model.trainable_parameters / model.parameters
    width = 2 * _gathered_bytes(model, layouts) + reduced * trained
    is_each = engine_column(layouts, lambda engine: engine.gathers_each_parameter).astype(bool)
    is_slow = shards.leave(machine.ranks_per_domain) & is_each
    adapter = np.where(is_slow, machine.pair_bytes_per_s(count, stride), np.inf)
    rate = np.minimum(machine.bus_bytes_per_s(count, stride), adapter)
    dense = (model.parameters - model.routed_parameters) / layouts["tensor_parallel"] * (count - 1) / count
    copies = layouts.expert_shards
    routed = model.routed_parameters / layouts.ranks_of_expert_layer * (copies - 1) / copies
    return np.where(layouts["zero_stage"] == 3, (dense + routed) * width / rate, 0)


def _gathered_bytes(model: ModelShape, layouts: LayoutTable) -> np.ndarray:
    """Bytes of a gathered weight, a mean: frozen ones are gathered, too, those in 4 bits as they are."""
    share = model.num_layers * model.linear_parameters_in_4_bits / model.parameters
    return gathered_weight_bytes(layouts) * (1 - share) + BYTES_OF_4_BITS * share


def _shards(machine: MachineSpeed, layouts: LayoutTable) -> RankGroups:
    """Groups that shard parameters outside experts. Where stages are between their context- and their data-parallel
    ranks, a link domain has the former side by side: as few groups share its links as it has of these."""
    shards, context = table_groups(layouts, "shards"), layouts["context_parallel"]
    is_cut = layouts.equals("rank_order", "tp-pp-dp") & (context > 1)
    beside = np.maximum(layouts["tensor_parallel"], machine.ranks_per_domain // context)
    return RankGroups(shards.ranks, np.where(is_cut, np.minimum(shards.stride, beside), shards.stride))


# -- once a step


def _per_step_seconds(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable, stages: StageTable) -> Columns:
    """Seconds once per step rather than per micro-batch."""
    dense, routed = (part.max(axis=1) for part in stages.trained_of_rank(layouts))
    is_sharded, is_offloaded = layouts["zero_stage"] >= 1, layouts.equals("offload", "optimizer")
    updated = dense / np.where(is_sharded, layouts.shards, 1) + routed / np.where(is_sharded, layouts.expert_shards, 1)
    on_host = updated * (_OFFLOADED_BYTES / machine.host_bytes_per_s + _UPDATE_BYTES / (HOST_GB_PER_S * 1e9))
    reduced_s = _between_data_ranks(machine, layouts, dense, _shards(machine, layouts))
    reduced_s = reduced_s + _between_data_ranks(machine, layouts, routed, table_groups(layouts, "expert_shards"))
    overlaps = (
        (layouts["overlap_comm"] > 0)
        | (layouts["zero_stage"] >= 2)
        | engine_column(layouts, lambda engine: engine.always_overlaps_reductions).astype(bool)
    )
    return Columns.of(
        {
            ("pipeline", ("pipeline",)): _between_stages(model, machine, layouts),
            ("data_parallel", ("data_parallel",)): np.where(overlaps, 0, reduced_s),
            ("data_parallel", ("data_parallel", "overlap")): overlaps * EXPOSED * reduced_s,
            ("optimizer", ("memory_traffic",)): ~is_offloaded * updated * _UPDATE_BYTES / machine.memory_bytes_per_s,
            ("offload", ("offload",)): is_offloaded * on_host,
            ("optimizer", ("step",)): np.full(len(layouts), STEP_S),
        }
    )


_UPDATE_BYTES = 30
"""Bytes read and written per parameter by a fused Adam with fp32 masters."""
_OFFLOADED_BYTES = 6
"""Bytes per parameter over the host link: an fp32 gradient to the host, a 16-bit weight back."""
STEP_S = 0.02
"""A trainer's fixed work per step: norms, logs, a wait for the device."""


def _between_stages(model: ModelShape, machine: MachineSpeed, layouts: LayoutTable) -> np.ndarray:
    """Messages between stages, for each micro-batch and chunk, forward and backward.

    With sequence parallelism a rank has only its own positions; Megatron-LM also splits the rest over the
    tensor-parallel ranks (Narayanan et al., arXiv 2104.04473, section 4.1).
    """
    count, chunks = layouts["pipeline_parallel"], layouts["virtual_pipeline_stages"]
    rate = machine.pair_bytes_per_s(count, table_groups(layouts, "pipeline").stride)
    is_split = (layouts["sequence_parallel"] > 0) | engine_column(layouts, lambda engine: engine.splits_p2p)
    split = np.where(is_split, layouts["tensor_parallel"], 1)
    size = tokens_of_rank(model, layouts) * model.hidden_size * element_bytes(layouts) / split
    each = engine_column(layouts, lambda engine: 4 if engine.has_blocking_p2p else 2)
    messages = np.where(count > 1, each * chunks * (layouts["grad_accum_steps"] + count - 1), 0)
    return messages * (size / rate + MESSAGE_S)


MESSAGE_S = 150e-6
"""Time between a stage's kernel and the next stage's: a send, a receive, and waiting for each other."""


def _between_data_ranks(
    machine: MachineSpeed, layouts: LayoutTable, parameters: np.ndarray, groups: RankGroups
) -> np.ndarray:
    """Gradient reductions and weight gathers of a rank's parameters over these groups, if nothing overlaps them.

    ZeRO 2 reduces after each micro-batch, except in a pipeline and where ranks add up whole gradients. ZeRO 3's traffic
    of a micro-batch is in `_sharded_seconds`. Replicas then add up their shards of the gradients.
    """
    count, stride = groups.ranks, groups.stride
    zero, steps = layouts["zero_stage"], layouts["grad_accum_steps"]
    repeats = (zero >= 2) | engine_column(layouts, lambda engine: engine.reduces_every_micro_batch)
    whole = sums_whole_gradients(layouts)
    reductions = np.where(repeats & (layouts["pipeline_parallel"] == 1) & ~whole, steps, 1)
    gradients = reductions * parameters * reduced_gradient_bytes(layouts)
    gathered = (zero >= 1) & (zero < 3)
    sent = (1 + (zero == 0)) * gradients + gathered * parameters * gathered_weight_bytes(layouts)
    of_shards = ((zero < 3) | whole) * sent * (count - 1) / count / machine.bus_bytes_per_s(count, stride, zero >= 1)
    of_replicas = table_groups(layouts, "replicas")
    replicas, apart = of_replicas.ranks, of_replicas.stride
    between = 2 * gradients / count * (replicas - 1) / replicas
    return of_shards + between / machine.bus_bytes_per_s(replicas, apart, np.zeros(len(layouts), dtype=bool))
