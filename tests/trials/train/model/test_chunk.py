"""Heads, documents and forced routing of a model chunk."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from search_spaces.routing import Routing
from tests.trials.train.trial_processes import MODEL
from trials.train.model.attention import Documents, attention, supports_gqa
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.model.mlp import forced_choice
from trials.train.parallel.tensor_parallel import TensorParallelRanks

CPU = torch.device("cpu")


def test_key_value_heads_that_are_repeated_serve_the_same_heads_as_grouped_ones():
    query, key, value = (torch.randn((2, heads, 8, 4)) for heads in (6, 2, 2))
    assert torch.allclose(attention(query, key, value, False), attention(query, key, value, True), atol=1e-6)


@pytest.mark.parametrize(
    ("is_cuda", "dtype", "has_flash", "knows_groups"),
    [
        (True, torch.bfloat16, True, True),
        (True, torch.float32, True, False),
        (False, torch.float32, True, True),
    ],
)
def test_heads_are_grouped_only_where_the_kernel_takes_groups(is_cuda, dtype, has_flash, knows_groups):
    query = SimpleNamespace(is_cuda=is_cuda, dtype=dtype)
    assert supports_gqa(query, has_flash) is knows_groups


DOCUMENTS = {
    "learned": {},
    "rotary": {"position_embedding": "rotary", "norm": "rmsnorm"},
    "windows and sinks": {"sliding_window": 3, "attention_sinks": True},
}
LENGTHS = ((5, 1, 10), (16,))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_document_of_a_sequence_is_as_if_it_were_alone(name):
    model = replace(MODEL, seq_length=16, **DOCUMENTS[name])
    ids = torch.arange(32).view(2, 16) * 7 % model.vocab_size
    packed, plain = (
        ModelChunk(model, ChunkPlan.of(model, 0, 1), TensorParallelRanks(), WeightSource(11, CPU), ChunkExecution())
        for _ in range(2)
    )
    packed.begin_step([Documents.of(LENGTHS, ids.device)])
    logits = packed(ids)
    documents = [part for sequence, lengths in zip(ids, LENGTHS, strict=True) for part in sequence.split(lengths)]
    alone = torch.cat([plain(document.unsqueeze(0)).flatten(0, 1) for document in documents])
    assert torch.allclose(logits.flatten(0, 1), alone, atol=1e-6)
    assert not torch.allclose(logits, plain(ids), atol=1e-3)


@pytest.mark.parametrize(
    ("skew", "tokens", "num_experts", "top_k", "counts"),
    [
        (1.0, 3, 4, 2, [2, 2, 1, 1]),
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
