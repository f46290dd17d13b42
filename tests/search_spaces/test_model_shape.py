"""Parameters and FLOPs of a model, and what contradicts itself."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.routing import Routing, load_of_fullest_rank
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


DENSE = gpt(6, 64, 4, num_key_value_heads=2, ffn_hidden_size=96, vocab_size=256, seq_length=32, **LLAMA_FIELDS)
OF_EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_hidden_size": 48}
OF_LATENT = {
    "num_key_value_heads": 4,
    "attention_head_size": 24,
    "key_value_latent_size": 32,
    "query_latent_size": 40,
    "rotary_head_size": 8,
    "value_head_size": 20,
}


def test_each_expert_is_an_mlp_and_a_token_passes_some():
    model, expert = replace(DENSE, **OF_EXPERTS), 3 * 64 * 48
    router = 8 * 64
    assert model.parameters - DENSE.parameters == 6 * (8 * expert + router - 3 * 64 * 96)
    assert model.active_parameters == model.parameters - 6 * 6 * expert
    dense_as_active = replace(DENSE, ffn_hidden_size=96)
    assert model.model_flops_per_token - dense_as_active.model_flops_per_token == 6 * 6 * router
    assert replace(DENSE, **OF_EXPERTS | {"expert_ffn_hidden_size": 96}).expert_ffn_hidden_size is None


def test_some_layers_keep_their_mlp():
    model = replace(DENSE, **OF_EXPERTS, num_dense_layers=1, expert_layer_every=2, shared_expert_ffn_hidden_size=16)
    assert [model.has_experts(layer) for layer in range(6)] == [False, False, True, False, True, False]
    assert model.num_expert_layers == 2
    of_layer = 8 * 3 * 64 * 48 + 8 * 64 + 3 * 64 * 16
    assert model.parameters - DENSE.parameters == 2 * (of_layer - 3 * 64 * 96)
    assert model.routed_parameters == 2 * 8 * 3 * 64 * 48


def test_latent_attention_and_a_layer_for_further_tokens_have_products_of_their_own():
    model = replace(DENSE, **OF_LATENT)
    queries = 64 * 40 + 40 + 40 * 4 * 24
    keys_and_values = 64 * (32 + 8) + 32 + 32 * 4 * (16 + 20)
    assert model.attention_parameters == queries + keys_and_values + 4 * 20 * 64
    scores = 6 * 6 * 4 * (24 + 20) * 32
    assert model.model_flops_per_token == 6 * (model.parameters - 256 * 64) + scores
    model = replace(DENSE, num_mtp_layers=1)
    layer = DENSE.layer_parameters + 2 * 64 * 64 + 3 * 64
    assert model.parameters - DENSE.parameters == layer
    scores = 12 * 64 * 32
    assert model.model_flops_per_token - DENSE.model_flops_per_token == 6 * (layer + 256 * 64) + scores


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"qkv_bias": True, "linear_biases": True}, "qkv_bias"),
        ({"full_attention_every": 2}, "full_attention_every"),
        ({"position_embedding": "learned", "rotary_base": 500_000}, "rotary_base"),
        ({"activation": "tanh"}, "activation"),
        ({"post_norms": None}, "post_norms"),
        ({"num_experts": 8}, "experts_per_token"),
        ({"num_dense_layers": 1}, "num_dense_layers"),
        (OF_EXPERTS | {"num_dense_layers": 6}, "num_dense_layers"),
        ({"rotary_head_size": 8}, "rotary_head_size"),
        (OF_LATENT | {"rotary_head_size": 24}, "rotary_head_size"),
        (OF_LATENT | {"qk_norm": True}, "qk_norm"),
        ({"num_mtp_layers": -1}, "num_mtp_layers"),
    ],
)
def test_fields_that_contradict_each_other_are_refused_by_name(fields, field):
    with pytest.raises(InputError) as caught:
        replace(DENSE, **fields)
    assert caught.value.problems[0].key == f"model.{field}"


def test_attention_is_counted_by_document():
    """A token attends to its document, on average `document_length` tokens long, half of it before the token."""
    packed = replace(LLAMA, document_length=8.0)
    scored = LLAMA.scored_size * LLAMA.num_layers
    assert LLAMA.model_flops_per_token - packed.model_flops_per_token == 6 * scored * (32 - 8)
    assert LLAMA.causal_flops_per_token - packed.causal_flops_per_token == 6 * scored * (32 - 8) / 2
    assert packed.parameters == LLAMA.parameters
    assert replace(packed, document_length=32.0).model_flops_per_token == LLAMA.model_flops_per_token
    assert replace(packed, sliding_window=16).attended_positions == LLAMA.num_layers * 8


@pytest.mark.parametrize("length", [0.5, 33, "8", True, math.nan])
def test_a_document_longer_than_its_sequence_or_none_is_refused(length):
    with pytest.raises(InputError, match="document_length"):
        replace(LLAMA, document_length=length)


@pytest.mark.parametrize("name", ["has_dropout", "fuses_loss"])
def test_what_follows_from_the_trainers_options_is_true_or_false(name):
    with pytest.raises(InputError, match=f"{name} is 'no'|{name} is no"):
        replace(LLAMA, **{name: "no"})


@pytest.mark.parametrize(
    ("text", "kind", "skew", "written"),
    [
        ("balanced", "balanced", 1.0, "balanced"),
        ("skewed(2)", "skewed", 2.0, "skewed(2)"),
        ("skewed( 1.50 )", "skewed", 1.5, "skewed(1.5)"),
        (None, "learned", None, "learned"),
    ],
)
def test_a_text_is_a_routing(text, kind, skew, written):
    found = Routing.of(text)
    assert (found.kind, found.skew, str(found)) == (kind, skew, written)
    assert Routing.of(written) == found


@pytest.mark.parametrize("text", ["skewed", "skewed(1)", "skewed(0.5)", "skewed(-2)", "skewed(x)", "balance", "2", ""])
def test_any_other_is_refused(text):
    with pytest.raises(InputError, match="skewed\\(s\\) with s above 1"):
        Routing.of(text)


def test_the_fullest_rank_has_the_most_loaded_expert_and_its_share_of_the_rest():
    # Of 8 experts with 2 of 16 tokens each, the first now has 9 and the other seven 1 each.
    loads = load_of_fullest_rank(4.5, 8, np.array([1, 2, 4, 8]))
    assert loads == pytest.approx([1.0, (9 + 3) / 8, (9 + 1) / 4, 9 / 2])
    assert load_of_fullest_rank(1.0, 8, np.array([1, 8])) == pytest.approx([1.0, 1.0])
    assert load_of_fullest_rank(1.0, 1, np.array([1])) == 1.0
