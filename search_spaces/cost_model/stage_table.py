"""Pipeline stages of many layouts as arrays of shape (layouts, selected stages). Pure; numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search_spaces.engines import ENGINE_PROFILES, LayerSplit
from search_spaces.layouts.layout import V_SCHEDULES, Layout
from search_spaces.layouts.pipeline_split import DECIDING_FIELDS, chunk_layers, greedy_stage_layers
from search_spaces.layouts.table import LayoutTable, combinations_of
from search_spaces.model_shape import ModelShape


@dataclass(frozen=True)
class StageTable:
    """`index` counts stages from 0; `layers` are a stage's own, `expert_layers` those with experts among them;
    `parameters` are summed over its tensor-parallel ranks, `routed` those of experts among them, `trained` those that
    train, with those of experts. The head is on the last stage, or where the trainer puts it."""

    index: np.ndarray
    layers: np.ndarray
    expert_layers: np.ndarray
    parameters: np.ndarray
    routed: np.ndarray
    trained: np.ndarray
    is_first: np.ndarray
    has_head: np.ndarray

    @classmethod
    def ends(cls, model: ModelShape, layouts: LayoutTable) -> StageTable:
        """The first two and the last two stages of each layout, and the first of those with most experts, possibly
        repeated: the fullest is among them, since memory falls evenly from stage to stage of the same layers."""
        count, split = layouts["pipeline_parallel"], _Split.of(model, layouts)
        columns = [np.zeros_like(count), np.minimum(1, count - 1), np.maximum(count - 2, 0), count - 1]
        if 0 < model.num_expert_layers < model.num_layers:
            columns.append(split.experts.argmax(axis=1)[split.group])
        return cls._of(model, layouts, split, np.stack(columns, axis=1))

    @classmethod
    def of_layout(cls, model: ModelShape, layout: Layout) -> StageTable:
        """Every stage of one layout."""
        return cls.at(model, LayoutTable.of([layout]), np.arange(layout.pipeline_parallel)[None, :])

    @classmethod
    def at(cls, model: ModelShape, layouts: LayoutTable, index: np.ndarray) -> StageTable:
        """The stages of these indices, one row per layout."""
        return cls._of(model, layouts, _Split.of(model, layouts), index)

    @classmethod
    def _of(cls, model: ModelShape, layouts: LayoutTable, split: _Split, index: np.ndarray) -> StageTable:
        group = split.group[:, None]
        layers, experts = split.layers[group, index], split.experts[group, index]
        is_first, has_head = index == 0, index == split.heads[group]
        table = model.vocab_size * model.hidden_size
        ends = is_first * model.embedding_parameters + has_head * (table + model.norm_parameters)
        if model.tied_embeddings:  # one table if both ends are on one stage
            ends = ends - (is_first & has_head) * table
        of_layers = sum(number * alike.layer_parameters for alike, number in layers_alike(model, layers, experts))
        routed = experts * model.routed_parameters_per_layer + has_head * model.routed_mtp_parameters
        parameters = trained = of_layers + ends + has_head * model.mtp_parameters
        if model.trainable is not None:
            part = model.trained
            trained = layers * part.layer + is_first * part.embedding + has_head * part.head
        return cls(index, layers, experts, parameters, routed, trained, is_first, has_head)

    def of_rank(self, layouts: LayoutTable) -> np.ndarray:
        """Parameters of each stage's ranks outside routed experts."""
        return (self.parameters - self.routed) / layouts["tensor_parallel"][:, None]

    def routed_of_rank(self, layouts: LayoutTable) -> np.ndarray:
        """Parameters of the experts that a rank of each stage holds."""
        return self.routed / layouts.ranks_of_expert_layer[:, None]

    def trained_of_rank(self, layouts: LayoutTable) -> tuple[np.ndarray, np.ndarray]:
        """Parameters of each stage's ranks that train, outside routed experts and of these."""
        routed = np.where(self.trained < self.parameters, 0, self.routed)
        dense = (self.trained - routed) / layouts["tensor_parallel"][:, None]
        return dense, routed / layouts.ranks_of_expert_layer[:, None]


def layers_alike(
    model: ModelShape, layers: np.ndarray, expert_layers: np.ndarray
) -> list[tuple[ModelShape, np.ndarray]]:
    """For each kind of the model's layers, with an MLP and with experts, a model of it alone and the number of these
    among some stages' layers."""
    kinds = [(False, layers - expert_layers)] if model.num_expert_layers < model.num_layers else []
    kinds += [(True, expert_layers)] if model.num_expert_layers else []
    return [(model.with_experts_in_layers(has_experts), number) for has_experts, number in kinds]


@dataclass(frozen=True)
class _Split:
    """Layers, and those with experts, of shape (groups, stages), and the stage of the head, for groups of layouts that
    are split alike; `group` is that of each layout."""

    layers: np.ndarray
    experts: np.ndarray
    heads: np.ndarray
    group: np.ndarray

    @classmethod
    def of(cls, model: ModelShape, layouts: LayoutTable) -> _Split:
        is_v = has_v_schedule(layouts)
        deciding = [*(layouts[name] for name in _OF_SPLIT), is_v.astype(int)]
        first, group = combinations_of(deciding, len(layouts))
        experts_before = np.cumsum([0, *(model.has_experts(layer) for layer in range(model.num_layers))])
        layers, experts = np.zeros((2, len(first), int(layouts["pipeline_parallel"].max(initial=1))))
        heads = np.zeros(len(first), dtype=int)
        for number, row in enumerate(first.tolist()):
            layout = layouts[row]
            stages = layout.pipeline_parallel
            chunks, heads[number] = _chunk_layers(model, layout)
            edges = np.cumsum([0, *chunks])
            layers[number, :stages] = _of_stages(np.diff(edges), stages, is_v[row])
            experts[number, :stages] = _of_stages(np.diff(experts_before[edges]), stages, is_v[row])
        return cls(layers, experts, heads, group)


_OF_SPLIT = ("engine", *DECIDING_FIELDS)


def has_v_schedule(layouts: LayoutTable) -> np.ndarray:
    """True where a rank's second model chunks run in reverse order, so that its first has the head, too."""
    return np.logical_or.reduce([layouts.equals("pipeline_schedule", schedule) for schedule in V_SCHEDULES])


def _chunk_layers(model: ModelShape, layout: Layout) -> tuple[Sequence[int], int]:
    """Layers of each model chunk, or of each stage, and the stage of the head."""
    if ENGINE_PROFILES[layout.engine].layer_split is LayerSplit.GREEDY:
        return greedy_stage_layers(model, layout.pipeline_parallel)
    return chunk_layers(model, layout), layout.head_stage


def _of_stages(of_chunks: np.ndarray, stages: int, is_v: bool) -> np.ndarray:
    """Sums over the chunks of each stage."""
    rows = of_chunks.reshape(-1, stages).copy()
    if is_v:
        rows[1::2] = rows[1::2, ::-1]
    return rows.sum(axis=0)


def in_flight(layouts: LayoutTable, index: np.ndarray) -> np.ndarray:
    """Largest number of micro-batches whose activations stages of these indices hold, a fraction for interleaved
    chunks: all of a step's with GPipe, the stages from here to the end with 1F1B, and with
    interleaved chunks those of its longer warm-up, 2 (p - i - 1) + (v - 1) p + 1, over v
    (megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches).

    On every rank p with ZBV (Qi et al., arXiv 2401.10241, section 6) and p + 1/2 with DualPipeV (deepseek-ai/DualPipe,
    README: a chunk more).
    """
    stages, chunks, steps = (
        layouts[name][:, None] for name in ("pipeline_parallel", "virtual_pipeline_stages", "grad_accum_steps")
    )
    interleaved = (2 * (stages - index - 1) + (chunks - 1) * stages + 1) / chunks
    one_f_one_b = np.where(chunks > 1, interleaved, stages - index)
    of_v = stages + 0.5 * layouts.equals("pipeline_schedule", "dualpipev")[:, None]
    one_f_one_b = np.where(has_v_schedule(layouts)[:, None], of_v, one_f_one_b)
    held = np.where(layouts.equals("pipeline_schedule", "gpipe")[:, None], steps, one_f_one_b)
    return np.where(stages > 1, np.minimum(held, steps), 1)
