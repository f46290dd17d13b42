"""How a model's layers are dealt to pipeline stages, embedding and head counted. Standard library only."""

from __future__ import annotations

from search_spaces.model_shape import ModelShape


def stage_layers(model: ModelShape, pipeline_parallel: int) -> tuple[int, ...]:
    """Layers of each stage, first to last: contiguous, summing to `num_layers`, the slowest stage as fast as can be.

    A stage costs the forward FLOPs per token of its layers; the first adds the embedding, the last the head. All
    layers cost the same, so handing each to the cheapest stage so far gives the least possible maximum. Of equally
    cheap stages the later one takes the layer, because 1F1B holds more activations on earlier stages. Every stage
    gets a layer as long as there are enough; with more stages than layers some hold none, which engines refuse.
    """
    layer = layer_flops_per_token(model)
    costs = [0] * pipeline_parallel
    costs[0] += embedding_flops_per_token(model)
    costs[-1] += head_flops_per_token(model)
    one_each = 1 if model.num_layers >= pipeline_parallel else 0
    counts = [one_each] * pipeline_parallel
    for _ in range(model.num_layers - sum(counts)):
        cheapest = min(range(pipeline_parallel), key=lambda s: (costs[s] + counts[s] * layer, -s))
        counts[cheapest] += 1
    return tuple(counts)


def greedy_stage_layers(model: ModelShape, pipeline_parallel: int) -> tuple[tuple[int, ...], int]:
    """Layers of each stage, first to last, and the stage of the head, as nanotron deals them.

    It fills a stage until the multiplications dealt so far exceed the stage's share of all, and only then goes on to
    the next, so that early stages get more and the last ones may be left with nothing but the loss
    (nanotron/models/base.py, build_model; the costs are those of get_block_compute_costs).
    """
    h, layer = model.hidden_size, 4 * model.hidden_size**2 + 3 * model.ffn_hidden_size * model.hidden_size
    head = model.vocab_size * h
    total = model.num_layers * layer + head
    counts = [0] * pipeline_parallel
    stage = dealt = 0
    for _ in range(model.num_layers):
        counts[stage] += 1
        dealt += layer
        stage += dealt * pipeline_parallel > total * (stage + 1)
    return tuple(counts), stage


def layer_flops_per_token(model: ModelShape) -> int:
    """Forward FLOPs of one layer per token: two a weight, and attention over the whole sequence (4 h s)."""
    return 2 * model.layer_parameters + 4 * model.hidden_size * model.seq_length


def head_flops_per_token(model: ModelShape) -> int:
    """Forward FLOPs of the output matrix per token, tied or not."""
    return 2 * model.vocab_size * model.hidden_size


def embedding_flops_per_token(model: ModelShape) -> int:
    """The lookup multiplies nothing; adding a learned position is one FLOP an element."""
    return model.hidden_size if model.position_embedding == "learned" else 0
