"""Parameters and FLOPs of a model, and what contradicts itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.kit import LLAMA as LLAMA_FIELDS
from tests.kit import gpt

MODEL = gpt(8, 1024, 16)
SCORES = 4 * 1024 * 2048
MLP = 2 * (2 * 4 * 1024**2 + 5 * 1024)
LAYER = 2 * MODEL.layer_parameters + SCORES
FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}


@pytest.mark.parametrize(
    ("fields", "again"),
    [
        ({}, 0),
        (FULL, 8 * LAYER),
        ({**FULL, "recompute_layers": 3}, 3 * LAYER),
        ({**FULL, "recompute_layers": 1, "pipeline_parallel": 2, "virtual_pipeline_stages": 2}, 4 * LAYER),
        (SELECTIVE, 8 * SCORES),
        ({**SELECTIVE, "recompute_modules": "mlp"}, 8 * MLP),
        ({**SELECTIVE, "recompute_modules": "core_attn+mlp"}, 8 * (SCORES + MLP)),
        ({**SELECTIVE, "recompute_layers": 3}, 8 * SCORES),
    ],
)
def test_hardware_flops_are_those_of_the_model_and_of_what_is_computed_again(fields, again):
    assert MODEL.hardware_flops_per_token(Layout(**fields)) - MODEL.model_flops_per_token == again


EXPERTS = replace(
    MODEL,
    num_experts=8,
    experts_per_token=2,
    expert_ffn_hidden_size=512,
    shared_expert_ffn_hidden_size=256,
    num_dense_layers=2,
)
LATENT = replace(
    MODEL,
    attention_head_size=96,
    key_value_latent_size=128,
    query_latent_size=256,
    rotary_head_size=32,
    value_head_size=64,
)


@pytest.mark.parametrize(
    ("model", "modules", "again"),
    [
        (EXPERTS, "mlp", 2 * MLP),
        # A router with biases, two experts of a token, and the shared one.
        (EXPERTS, "moe", 6 * 2 * (8 * 1025 + 2 * (2 * 1024 * 512 + 1536) + 2 * 1024 * 256 + 1280)),
        (EXPERTS, "shared_experts", 6 * 2 * (2 * 1024 * 256 + 1280)),
        (EXPERTS, "layernorm+moe_act", 0),
        # Queries from their latent; of keys the part that is not rotated, and values.
        (LATENT, "mla_up_proj", 8 * 2 * (256 * 16 * 96 + 128 * 16 * (64 + 64))),
    ],
)  # fmt: skip
def test_modules_recompute_their_own_products(model, modules, again):
    layout = Layout(**SELECTIVE, recompute_modules=modules)
    assert model.hardware_flops_per_token(layout) - model.model_flops_per_token == again


LLAMA = gpt(4, 64, 8, num_key_value_heads=4, ffn_hidden_size=192, vocab_size=256, seq_length=32, **LLAMA_FIELDS)


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"attention_head_size": 16}, 4 * 64 * (8 + 2 * 4 + 8) * 8),
        ({"qkv_bias": True}, 4 * (8 + 2 * 4) * 8),
        ({"linear_biases": True}, 4 * ((8 + 2 * 4) * 8 + 64 + 2 * 192 + 64)),
        ({"qk_norm": True}, 4 * 2 * 8),
        ({"post_norms": True}, 4 * 2 * 64),
        ({"attention_sinks": True}, 4 * 8),
        ({"activation": "relu", "rotary_base": 500_000, "sliding_window": 8}, 0),
    ],
)
def test_parameters_of_a_feature(fields, more):
    changed = replace(LLAMA, **fields)
    assert changed.parameters - LLAMA.parameters == more
    assert changed.features == tuple(sorted(fields, key=changed.features.index))


def test_values_that_are_the_usual_ones_are_no_features():
    usual = {"attention_head_size": 8, "activation": "silu", "rotary_base": 10_000, "linear_biases": False}
    assert replace(LLAMA, **usual).features == ()


def test_a_window_leaves_fewer_attention_scores_and_one_of_the_whole_sequence_as_many():
    windows = replace(LLAMA, sliding_window=8, full_attention_every=4)
    assert [windows.window_of(layer) for layer in range(4)] == [8, 8, 8, None]
    more = 3 * 8 + 32 - 4 * 32
    assert windows.model_flops_per_token - LLAMA.model_flops_per_token == 12 * 64 * more
    # A position counts half of itself, as in s / 2.
    attended = [min(position + 0.5, 8) for position in range(32)]
    assert windows.causal_positions == 3 * sum(attended) / 32 + 32 / 2
    windows = replace(LLAMA, sliding_window=32)
    assert windows.model_flops_per_token == LLAMA.model_flops_per_token
    assert windows.causal_flops_per_token == LLAMA.causal_flops_per_token


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"qkv_bias": True, "linear_biases": True}, "qkv_bias"),
        ({"full_attention_every": 2}, "full_attention_every"),
        ({"position_embedding": "learned", "rotary_base": 500_000}, "rotary_base"),
        ({"activation": "tanh"}, "activation"),
        ({"post_norms": None}, "post_norms"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, field):
    with pytest.raises(InputError, match=field):
        replace(LLAMA, **fields)


def test_attention_is_counted_by_document():
    """A token attends to its document, on average `document_length` tokens long, half of it before the token."""
    packed = replace(LLAMA, document_length=8.0)
    scored = LLAMA.scored_size * LLAMA.num_layers
    assert LLAMA.model_flops_per_token - packed.model_flops_per_token == 6 * scored * (32 - 8)
    assert LLAMA.causal_flops_per_token - packed.causal_flops_per_token == 6 * scored * (32 - 8) / 2
    assert packed.parameters == LLAMA.parameters
    assert replace(packed, document_length=32.0).model_flops_per_token == LLAMA.model_flops_per_token
    assert replace(packed, sliding_window=16).attended_positions == LLAMA.num_layers * 8


@pytest.mark.parametrize("length", [0.5, 33, "8", True])
def test_a_document_longer_than_its_sequence_or_none_is_refused(length):
    with pytest.raises(InputError, match="document_length"):
        replace(LLAMA, document_length=length)
