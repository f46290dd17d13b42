from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from search_spaces.model_shape import ModelShape
from search_spaces.stages import (
    embedding_flops_per_token,
    greedy_stage_layers,
    head_flops_per_token,
    layer_flops_per_token,
    stage_layers,
)

SMALL_HEAD = ModelShape(12, 768, 12, 12, 3072, False, 256, 1024, False, "learned", "layernorm")
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


def test_layers_are_equal_where_the_head_weighs_little():
    assert stage_layers(SMALL_HEAD, 4) == (3, 3, 3, 3)


def test_a_heavy_head_takes_layers_away_from_the_last_stage():
    assert stage_layers(GPT2, 2) == (8, 4)


def test_a_layer_too_many_goes_to_the_latest_of_the_cheapest_stages():
    assert stage_layers(replace(SMALL_HEAD, num_layers=13), 4) == (3, 3, 4, 3)


def test_with_more_stages_than_layers_all_layers_are_still_dealt():
    counts = stage_layers(replace(SMALL_HEAD, num_layers=2), 3)
    assert sum(counts) == 2
    assert max(counts) == 1


def test_stages_cost_in_sum_what_the_model_does_forward():
    # A forward pass is a third of forward and backward; norms, biases and positions multiply nothing in the sum's sense
    # but are counted as weights there, so the two agree to a fraction of a percent only.
    model = GPT2
    stages = model.num_layers * layer_flops_per_token(model) + head_flops_per_token(model)
    assert stages == pytest.approx(model.model_flops_per_token / 3, rel=1e-3)


def test_nanotron_fills_a_stage_until_its_share_is_exceeded():
    # Sixteen layers and a head as dear as four of them: 20 costs, 2.5 a stage. The last stage has nothing but the loss.
    model = ModelShape(16, 2048, 32, 32, 8192, True, 131072, 4096, True, "rotary", "rmsnorm")
    assert greedy_stage_layers(model, 8) == ((3, 3, 2, 3, 2, 3, 0, 0), 6)
    assert greedy_stage_layers(model, 1) == ((16,), 0)
