from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.layouts.pipeline_split import (
    GivenSplit,
    embedding_flops_per_token,
    greedy_stage_layers,
    head_flops_per_token,
    layer_flops_per_token,
    stage_layers,
)
from search_spaces.model_shape import ModelShape
from tests.kit import gpt

SMALL_HEAD = gpt(12, 768, 12, vocab_size=256, seq_length=1024)
GPT2 = replace(SMALL_HEAD, vocab_size=50304)


def slowest_stage(model: ModelShape, counts: tuple[int, ...]) -> int:
    costs = [count * layer_flops_per_token(model) for count in counts]
    costs[0] += embedding_flops_per_token(model)
    costs[-1] += head_flops_per_token(model)
    return max(costs)


def every_split(layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in zip((0, *cut), (*cut, layers), strict=True)) for cut in cuts]


@pytest.mark.parametrize("model", [SMALL_HEAD, GPT2, replace(GPT2, num_layers=7), replace(GPT2, vocab_size=400_000)])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 7])
def test_no_other_split_has_a_faster_slowest_stage(model, stages):
    counts = stage_layers(model, stages)
    assert sum(counts) == model.num_layers
    assert min(counts) >= 1
    fastest = min(slowest_stage(model, split) for split in every_split(model.num_layers, stages))
    assert slowest_stage(model, counts) == fastest


def dealt_one_by_one(model: ModelShape, stages: int) -> tuple[int, ...]:
    """Reference: each layer to the cheapest stage so far, the latest of equally cheap ones."""
    counts = [1 if model.num_layers >= stages else 0] * stages
    costs = [count * layer_flops_per_token(model) for count in counts]
    costs[0] += embedding_flops_per_token(model)
    costs[-1] += head_flops_per_token(model)
    for _ in range(model.num_layers - sum(counts)):
        cheapest = min(range(stages), key=lambda stage: (costs[stage], -stage))
        counts[cheapest] += 1
        costs[cheapest] += layer_flops_per_token(model)
    return tuple(counts)


def filled_one_by_one(model: ModelShape, stages: int) -> tuple[tuple[int, ...], int]:
    """Reference: nanotron's loop over the layers."""
    layer = 4 * model.hidden_size**2 + 3 * model.ffn_hidden_size * model.hidden_size
    total = model.num_layers * layer + model.vocab_size * model.hidden_size
    counts, stage = [0] * stages, 0
    for dealt in range(1, model.num_layers + 1):
        counts[stage] += 1
        stage += dealt * layer * stages > total * (stage + 1)
    return tuple(counts), stage


@pytest.mark.slow
@given(
    layers=st.integers(1, 60),
    stages=st.integers(1, 70),
    vocab=st.sampled_from([1, 256, 1024, 50304, 400_000, 5_000_000]),
    hidden=st.sampled_from([1, 8, 768]),
    position=st.sampled_from(["learned", "rotary"]),
)
def test_layers_are_dealt_at_once_as_they_would_be_one_by_one(layers, stages, vocab, hidden, position):
    changes = {"num_layers": layers, "vocab_size": vocab, "hidden_size": hidden, "position_embedding": position}
    model = replace(SMALL_HEAD, num_attention_heads=1, num_key_value_heads=1, **changes)
    assert stage_layers(model, stages) == dealt_one_by_one(model, stages)
    assert greedy_stage_layers(model, stages) == filled_one_by_one(model, stages)


def test_the_most_layers_that_a_file_may_have_are_dealt_evenly():
    model = replace(GPT2, num_layers=10_000)
    counts = stage_layers(model, 1000)
    assert sum(counts) == model.num_layers
    assert max(counts) - min(counts) <= 6
    assert sum(greedy_stage_layers(model, 1000)[0]) == model.num_layers


@pytest.mark.parametrize(
    ("given", "num_layers", "layers"),
    [
        (GivenSplit(4, 1, "even", None, None), 8, (2, 2, 2, 2)),
        (GivenSplit(4, 1, "even", None, None), 6, None),
        (GivenSplit(4, 1, "embedding+loss", None, None), 6, (1, 2, 2, 1)),
        (GivenSplit(2, 2, "loss", None, None), 7, (2, 2, 2, 1)),
        # The first stage would have the embedding alone.
        (GivenSplit(4, 1, "embedding", None, None), 3, None),
        (GivenSplit(4, 1, "own", 1, None), 7, (1, 2, 2, 2)),
        (GivenSplit(2, 1, "own", 3, 5), 8, (3, 5)),
        (GivenSplit(2, 2, "own", 2, 4), 6, (1, 2, 1, 2)),
        # The model's last chunk, or its first, has the rest: Et*4|(t*4|)*14tmL of DeepSeek-V3.
        (GivenSplit(8, 2, "own", None, 5), 61, (*(4,) * 15, 1)),
        (GivenSplit(3, 2, "own", 3, None), 11, (1, 2, 2, 2, 2, 2)),
        (GivenSplit(2, 2, "own", None, 1), 7, None),
        (GivenSplit(4, 2, "own", None, 5), 60, None),
    ],
)
def test_a_given_split_is_megatrons(given, num_layers, layers):
    assert given.chunk_layers(num_layers) == layers
