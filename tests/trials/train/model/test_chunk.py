"""Parameters, documents and forced routing of a model chunk."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from search_spaces.routing import Routing
from tests.trials.train.trial_processes import MODEL
from trials.train.model.attention import attention, supports_gqa
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.documents import Documents
from trials.train.model.forced_routing import forced_choice
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.tensor_parallel import TensorParallelRanks

WEIGHTS = WeightSource(seed=11, device=torch.device("cpu"))
ALONE = TensorParallelRanks()


def chunk(model, index: int, stages: int, ranks: TensorParallelRanks = ALONE) -> ModelChunk:
    return ModelChunk(model, ChunkPlan.of(model, index, stages), ranks, WEIGHTS, ChunkExecution())


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_all_ranks_together_answer_for_each_parameter_of_the_model_once(tied, stages, tensor_parallel):
    model = replace(MODEL, tied_embeddings=tied)
    ranks = [TensorParallelRanks(rank, tensor_parallel) for rank in range(tensor_parallel)]
    built = [chunk(model, index, stages, r) for index in range(stages) for r in ranks]
    assert sum(p.numel() for s in built for p in s.counted_parameters()) == model.parameters


def test_a_slice_of_a_weight_is_that_part_of_the_whole_on_whichever_rank_and_stage_it_lies():
    whole, last = chunk(MODEL, 0, 1).state_dict(), chunk(MODEL, 1, 2).state_dict()
    halves = [chunk(MODEL, 0, 1, TensorParallelRanks(rank, 2)).state_dict() for rank in range(2)]
    split = {"embedding.tokens": 0, "blocks.1.mlp.linear_in": 0, "blocks.0.mlp.linear_out": 1}
    for name, dim in split.items():
        assert torch.equal(torch.cat([half[f"{name}.weight"] for half in halves], dim), whole[f"{name}.weight"])
    queries = [half["blocks.0.qkv.weight"].chunk(3)[0] for half in halves]
    assert torch.equal(torch.cat(queries), whole["blocks.0.qkv.weight"].chunk(3)[0])
    assert torch.equal(last["blocks.0.qkv.weight"], whole["blocks.1.qkv.weight"])
    assert torch.equal(last["head.weight"], whole["head.weight"])
    other = ModelChunk(MODEL, ChunkPlan.of(MODEL, 0, 1), ALONE, WeightSource(12, WEIGHTS.device), ChunkExecution())
    assert not torch.equal(other.head.weight, whole["head.weight"]), "another seed"


def test_a_tied_model_has_one_table_for_input_and_output_and_what_passes_through_is_counted():
    tied = chunk(replace(MODEL, tied_embeddings=True), 0, 1)
    assert tied.head.weight is tied.embedding.tokens.weight
    for sequences in (2, 3):
        tied(torch.zeros((sequences, MODEL.seq_length), dtype=torch.long))
    assert (tied.micro_batches, tied.samples) == (2, 5)


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
    packed, plain = chunk(model, 0, 1), chunk(model, 0, 1)
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
    chosen = forced_choice(Routing(skew), tokens, num_experts, top_k, WEIGHTS.device)
    assert chosen.shape == (tokens, top_k)
    assert all(len(set(row)) == top_k for row in chosen.tolist())
    assert chosen.flatten().bincount(minlength=num_experts).tolist() == counts


def test_tokens_of_the_most_loaded_expert_are_spread_over_all():
    chosen = forced_choice(Routing(2.0), 16, 8, 1, WEIGHTS.device)
    assert [token for token, (expert,) in enumerate(chosen.tolist()) if expert == 0] == [3, 7, 11, 15]
