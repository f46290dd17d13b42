"""Pipeline stages of many layouts as arrays of shape (layouts, selected stages). Pure; numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from search_spaces.engines import ENGINE_PROFILES, LayerSplit
from search_spaces.layouts.layout import V_SCHEDULES, Layout
from search_spaces.layouts.pipeline_split import GivenSplit, greedy_stage_layers, stage_layers
from search_spaces.layouts.table import LayoutTable, decode
from search_spaces.model_shape import ModelShape


@dataclass(frozen=True)
class StageTable:
    """`index` counts stages from 0; `layers` and `parameters` are a stage's own, summed over its tensor-parallel ranks,
    `routed` the parameters of experts among them, where some layers have none a mean over the stages;
    `in_flight` is the largest number of micro-batches whose activations it holds, a fraction for interleaved chunks.
    The head is on the last stage, or where the trainer puts it."""

    index: np.ndarray
    layers: np.ndarray
    parameters: np.ndarray
    routed: np.ndarray
    in_flight: np.ndarray
    is_first: np.ndarray
    has_head: np.ndarray

    @classmethod
    def ends(cls, model: ModelShape, layouts: LayoutTable) -> StageTable:
        """The first two and the last two stages of each layout, possibly repeated."""
        count = layouts["pipeline_parallel"]
        columns = [np.zeros_like(count), np.minimum(1, count - 1), np.maximum(count - 2, 0), count - 1]
        return cls.at(model, layouts, np.stack(columns, axis=1))

    @classmethod
    def of_layout(cls, model: ModelShape, layout: Layout) -> StageTable:
        """Every stage of one layout."""
        return cls.at(model, LayoutTable.of([layout]), np.arange(layout.pipeline_parallel)[None, :])

    @classmethod
    def at(cls, model: ModelShape, layouts: LayoutTable, index: np.ndarray) -> StageTable:
        """The stages of these indices, one row per layout."""
        layers, head = _layers_and_head(model, layouts, index)
        is_first, has_head = index == 0, index == head
        table = model.vocab_size * model.hidden_size
        ends = is_first * model.embedding_parameters + has_head * (table + model.norm_parameters)
        if model.tied_embeddings:  # one table if both ends are on one stage
            ends = ends - (is_first & has_head) * table
        further = model.mtp_parameters * has_head
        return cls(
            index,
            layers,
            layers * model.layer_parameters + ends + further,
            layers * model.routed_parameters / model.num_layers,
            _in_flight(layouts, index),
            is_first,
            has_head,
        )

    def of_rank(self, layouts: LayoutTable) -> np.ndarray:
        """Parameters of each stage's ranks outside routed experts."""
        return (self.parameters - self.routed) / layouts["tensor_parallel"][:, None]

    def routed_of_rank(self, layouts: LayoutTable) -> np.ndarray:
        """Parameters of the experts that a rank of each stage holds."""
        return self.routed / layouts.ranks_of_expert_layer[:, None]


def _layers_and_head(model: ModelShape, layouts: LayoutTable, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Layers of each stage, and the stage of the head as a column, as the layout's trainer splits them."""
    is_v = has_v_schedule(layouts)
    deciding = [*(layouts[name] for name in _OF_SPLIT), is_v.astype(int)]
    kinds = np.ravel_multi_index(tuple(deciding), [int(column.max(initial=0)) + 1 for column in deciding])
    groups, group = np.unique(kinds, return_inverse=True)
    first = np.zeros(len(groups), dtype=int)
    first[group] = np.arange(len(layouts))
    values = [{name: decode(name, int(layouts[name][row])) for name in _OF_SPLIT} for row in first]
    dealt = [
        _split_layers(model, engine, GivenSplit(*given), is_v[row])
        for row, (engine, *given) in zip(first, (of.values() for of in values), strict=True)
    ]
    counts = np.concatenate([counts for counts, _ in dealt]) if dealt else np.empty(0)
    offsets = np.cumsum([0, *(len(counts) for counts, _ in dealt)])[:-1]
    heads = np.array([head for _, head in dealt])
    return counts[offsets[group][:, None] + index], heads[group][:, None]


_OF_SPLIT = (
    *("engine", "pipeline_parallel", "virtual_pipeline_stages"),
    *("pipeline_split", "first_stage_layers", "last_stage_layers"),
)
"""Fields that decide a split, in the order of `GivenSplit`."""


def has_v_schedule(layouts: LayoutTable) -> np.ndarray:
    """True where a rank's second model chunks run in reverse order, so that its first has the head, too."""
    return np.logical_or.reduce([layouts.equals("pipeline_schedule", schedule) for schedule in V_SCHEDULES])


def _split_layers(model: ModelShape, engine: str, given: GivenSplit, is_v: bool) -> tuple[np.ndarray, int]:
    """Layers of each stage, its chunks summed, and the stage of the head."""
    split, stages, chunks = ENGINE_PROFILES[engine].layer_split, given.stages, given.chunks
    layers = None if given.is_own else given.chunk_layers(model.num_layers)
    if layers is not None:
        return _of_stages(layers, stages, is_v), 0 if is_v else stages - 1
    if split is LayerSplit.GREEDY:
        counts, head = greedy_stage_layers(model, stages)
        return np.array(counts), head
    if split is LayerSplit.EVEN and model.num_layers % (stages * chunks) == 0:
        return np.full(stages, model.num_layers / stages), stages - 1
    return _of_stages(stage_layers(model, stages * chunks), stages, is_v), 0 if is_v else stages - 1


def _of_stages(chunk_layers: tuple[int, ...], stages: int, is_v: bool) -> np.ndarray:
    of_chunks = np.array(chunk_layers).reshape(-1, stages)
    if is_v:
        of_chunks[1::2] = of_chunks[1::2, ::-1]
    return of_chunks.sum(axis=0)


def _in_flight(layouts: LayoutTable, index: np.ndarray) -> np.ndarray:
    """Micro-batches in flight: all of a step's with GPipe, the stages from here to the end with 1F1B, and with
    interleaved chunks those of its longer warm-up, 2 (p - i - 1) + (v - 1) p + 1, over v: one more with expert_overlap
    (megatron/core/pipeline_parallel/schedules.py, get_pp_rank_microbatches).

    On every rank p with ZBV (Qi et al., arXiv 2401.10241, section 6) and p + 1/2 with DualPipeV (deepseek-ai/DualPipe,
    README: a chunk more).
    """
    stages, chunks, steps = (
        layouts[name][:, None] for name in ("pipeline_parallel", "virtual_pipeline_stages", "grad_accum_steps")
    )
    further = 1 + layouts["expert_overlap"][:, None]
    interleaved = (2 * (stages - index - 1) + (chunks - 1) * stages + further) / chunks
    one_f_one_b = np.where(chunks > 1, interleaved, stages - index)
    of_v = stages + 0.5 * layouts.equals("pipeline_schedule", "dualpipev")[:, None]
    one_f_one_b = np.where(has_v_schedule(layouts)[:, None], of_v, one_f_one_b)
    held = np.where(layouts.equals("pipeline_schedule", "gpipe")[:, None], steps, one_f_one_b)
    return np.where(stages > 1, np.minimum(held, steps), 1)
