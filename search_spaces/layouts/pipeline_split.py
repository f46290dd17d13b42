"""Split of a model's layers over pipeline stages, embedding and head included in the cost. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace

from search_spaces.engines import ENGINE_PROFILES, LayerSplit
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape

SPLIT_FIELDS = ("pipeline_split", "first_stage_layers", "last_stage_layers")
"""Fields of a layout that give a split."""
DECIDING_FIELDS = ("pipeline_parallel", "virtual_pipeline_stages", *SPLIT_FIELDS)
"""Fields that decide it, in the order of `GivenSplit`."""


@dataclass(frozen=True)
class GivenSplit:
    """Split of layers over the model chunks of a pipeline that a layout gives: evenly, with the embedding, the loss or
    both counted as a layer, or with the layers of the `first` and the `last` stage given and the others even.

    Where the layers of a given stage do not divide over its chunks, these have as many as those of other stages, but
    for the model's first or last chunk, which has the rest.
    """

    stages: int
    chunks: int
    """Model chunks a stage."""
    split: str
    first: int | None
    last: int | None

    @classmethod
    def of(cls, layout: Layout) -> GivenSplit:
        return cls(*(getattr(layout, name) for name in DECIDING_FIELDS))

    @classmethod
    def found(cls, layers: tuple[int, ...], stages: int) -> GivenSplit | None:
        """The split that gives the chunks so many layers, first to last; None where there is none."""
        chunks, rest = divmod(len(layers), stages)
        if rest or not chunks:
            return None
        first, last = sum(layers[::stages]), sum(layers[stages - 1 :: stages])
        known = [cls(stages, chunks, word, None, None) for word in ("even", "embedding", "loss", "embedding+loss")]
        known += [cls(stages, chunks, "own", *ends) for ends in ((first, None), (None, last), (first, last))]
        return next((split for split in known if split.chunk_layers(sum(layers)) == layers), None)

    @property
    def is_own(self) -> bool:
        """True where the engine splits the layers its own way."""
        return self.split == "own" and self.gives_no_stage

    @property
    def gives_no_stage(self) -> bool:
        return self.first is None and self.last is None

    @property
    def has_uneven_stage(self) -> bool:
        """True where the chunks of a stage have different numbers of layers."""
        return any((given or 0) % self.chunks for given in (self.first, self.last))

    def chunk_layers(self, num_layers: int) -> tuple[int, ...] | None:
        """Layers of each chunk, first to last; None where they do not divide, or a chunk would have none.

        megatron/core/transformer/transformer_block.py, get_num_layers_to_build.
        """
        layers = self._counted(num_layers) if self.gives_no_stage else self._with_given_stages(num_layers)
        return layers if layers and min(layers) > 0 and sum(layers) == num_layers else None

    def _counted(self, num_layers: int) -> tuple[int, ...]:
        at_first, at_last = ("embedding" in self.split), ("loss" in self.split)
        count = self.stages * self.chunks
        layers = [(num_layers + at_first + at_last) // count] * count
        layers[0] -= at_first
        layers[-1] -= at_last
        return tuple(layers)

    def _with_given_stages(self, num_layers: int) -> tuple[int, ...] | None:
        given = {0: self.first, self.stages - 1: self.last}
        counts = {stage: layers for stage, layers in given.items() if layers is not None}
        middle = self.stages - len(counts)
        each = (num_layers - sum(counts.values())) // middle if middle else 0
        of_stages = [counts.get(stage, each) for stage in range(self.stages)]
        usual, rest = divmod(each, self.chunks)
        layers = [usual if of_stage % self.chunks else of_stage // self.chunks for of_stage in of_stages] * self.chunks
        layers[0] += of_stages[0] - sum(layers[:: self.stages])
        layers[-1] += of_stages[-1] - sum(layers[self.stages - 1 :: self.stages])
        return None if rest else tuple(layers)


def chunk_layers(model: ModelShape, layout: Layout) -> tuple[int, ...]:
    """Layers of each model chunk as the layout gives them, else as the engine splits them: evenly where they divide and
    it does so, or as `stage_layers`."""
    given, is_even = GivenSplit.of(layout), ENGINE_PROFILES[layout.engine].layer_split is LayerSplit.EVEN
    layers = given.chunk_layers(model.num_layers) if is_even or not given.is_own else None
    return stage_layers(model, given.stages * given.chunks) if layers is None else layers


def stage_layers(model: ModelShape, pipeline_parallel: int) -> tuple[int, ...]:
    """Layers of each stage, first to last: contiguous, summing to `num_layers`, with the least cost of the slowest
    stage.

    A stage costs the forward FLOPs per token of its layers; the first adds the embedding, the last the head. All layers
    cost the same, so giving each to the cheapest stage so far minimises the maximum. Among equally cheap stages the
    later one takes the layer, because 1F1B holds more activations on earlier stages. Every stage gets a layer as long
    as there are enough; with more stages than layers some have none, which engines reject.
    """
    layer = layer_flops_per_token(model)
    counts = [int(model.num_layers >= pipeline_parallel)] * pipeline_parallel
    costs = [count * layer for count in counts]
    costs[0] += embedding_flops_per_token(model)
    costs[-1] += head_flops_per_token(model)
    cheapest = [(cost, -stage) for stage, cost in enumerate(costs)]
    heapify(cheapest)
    for _ in range(model.num_layers - sum(counts)):
        cost, place = cheapest[0]
        counts[-place] += 1
        heapreplace(cheapest, (cost + layer, place))
    return tuple(counts)


def greedy_stage_layers(model: ModelShape, pipeline_parallel: int) -> tuple[tuple[int, ...], int]:
    """Layers of each stage, first to last, and the stage of the head, as nanotron deals them.

    It fills a stage until the multiplications so far exceed the stage's share of all, then goes on to the next, so that
    early stages get more and the last ones may have nothing but the loss (nanotron/models/base.py, build_model; the
    costs are those of get_block_compute_costs).
    """
    h, layer = model.hidden_size, 4 * model.hidden_size**2 + 3 * model.ffn_hidden_size * model.hidden_size
    head = model.vocab_size * h
    total = model.num_layers * layer + head
    counts = [0] * pipeline_parallel
    stage = dealt = 0
    while dealt < model.num_layers:
        full = max(dealt + 1, total * (stage + 1) // (layer * pipeline_parallel) + 1)
        counts[stage] = min(full, model.num_layers) - dealt
        dealt += counts[stage]
        stage += dealt == full
    return tuple(counts), stage


def layer_flops_per_token(model: ModelShape) -> int:
    """Forward FLOPs of one layer per token, a mean over the layers: two a weight that it passes, and attention's two
    products (4 q s without windows)."""
    scores = 2 * model.scored_size * model.attended_positions // model.num_layers
    return int(2 * model.active_layer_parameters) + int(scores)


def head_flops_per_token(model: ModelShape) -> int:
    """Forward FLOPs of the output matrix per token, tied or not."""
    return 2 * model.vocab_size * model.hidden_size


def embedding_flops_per_token(model: ModelShape) -> int:
    """Forward FLOPs of the embedding per token: the lookup has none, a learned position one per element."""
    return model.hidden_size if model.position_embedding == "learned" else 0
