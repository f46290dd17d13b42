"""Experts of each token in a forced routing."""

from __future__ import annotations

import pytest
import torch

from search_spaces.routing import Routing
from trials.train.model.forced_routing import forced_choice

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("skew", "tokens", "num_experts", "top_k", "counts"),
    [
        (1.0, 8, 4, 2, [4, 4, 4, 4]),
        (1.0, 3, 4, 2, [2, 2, 1, 1]),
        (1.0, 4, 4, 4, [4, 4, 4, 4]),
        (2.0, 8, 4, 2, [8, 3, 3, 2]),
        (1.5, 8, 4, 2, [6, 4, 3, 3]),
        (4.0, 64, 8, 2, [64, 10, 9, 9, 9, 9, 9, 9]),
        (2.0, 16, 8, 1, [4, 2, 2, 2, 2, 2, 1, 1]),
    ],
)
def test_every_token_has_different_experts_and_these_their_loads(skew, tokens, num_experts, top_k, counts):
    chosen = forced_choice(Routing(skew), tokens, num_experts, top_k, CPU)
    assert chosen.shape == (tokens, top_k)
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    assert chosen.flatten().bincount(minlength=num_experts).tolist() == counts


def test_tokens_of_the_most_loaded_expert_are_spread_over_all():
    chosen = forced_choice(Routing(2.0), 16, 8, 1, CPU)
    assert [token for token, (expert,) in enumerate(chosen.tolist()) if expert == 0] == [3, 7, 11, 15]
