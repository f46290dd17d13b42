from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from orchestrator.importers.hf_config import looks_like_hf, read_hf_config
from orchestrator.importers.hf_families import FAMILIES, OTHER_MODELS
from search_spaces.errors import InputError
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from tests.orchestrator.importers.config_tables import require_table
from tests.orchestrator.importers.samples import HF_GPT2, HF_GPT_NEOX, HF_LLAMA

QWEN2 = yaml.safe_load("""
{model_type: qwen2, architectures: [Qwen2ForCausalLM], attention_dropout: 0.0, bos_token_id: 151643, hidden_act: silu,
hidden_size: 3584, initializer_range: 0.02, intermediate_size: 18944, max_position_embeddings: 131072,
max_window_layers: 28, num_attention_heads: 28, num_hidden_layers: 28, num_key_value_heads: 4, rms_norm_eps: 1.0e-06,
rope_theta: 1000000.0, sliding_window: 131072, tie_word_embeddings: false, torch_dtype: bfloat16, use_cache: true,
use_mrope: false, use_sliding_window: false, vocab_size: 152064}
""")
MISTRAL = yaml.safe_load("""
{model_type: mistral, architectures: [MistralForCausalLM], hidden_size: 4096, intermediate_size: 14336,
max_position_embeddings: 32768, num_attention_heads: 32, num_hidden_layers: 32, num_key_value_heads: 8,
sliding_window: 4096, torch_dtype: bfloat16, vocab_size: 32000}
""")
PHI3 = yaml.safe_load("""
{model_type: phi3, architectures: [Phi3ForCausalLM], auto_map: {AutoConfig: configuration_phi3.Phi3Config},
hidden_size: 3072, intermediate_size: 8192, max_position_embeddings: 131072, original_max_position_embeddings: 4096,
num_attention_heads: 32, num_hidden_layers: 32, num_key_value_heads: 32, sliding_window: 262144, torch_dtype: bfloat16,
rope_scaling: {type: longrope, long_factor: [1.0], short_factor: [1.0]}, vocab_size: 32064}
""")
GEMMA2 = {"model_type": "gemma2", "hidden_size": 2048, "torch_dtype": "bfloat16"}
QWEN3_MOE = yaml.safe_load("""
{model_type: qwen3_moe, architectures: [Qwen3MoeForCausalLM], decoder_sparse_step: 1, head_dim: 128, hidden_size: 2048,
intermediate_size: 6144, max_position_embeddings: 40960, max_window_layers: 48, mlp_only_layers: [],
moe_intermediate_size: 768, norm_topk_prob: true, num_attention_heads: 32, num_experts: 128, num_experts_per_tok: 8,
num_hidden_layers: 48, num_key_value_heads: 4, rope_theta: 1000000.0, sliding_window: null, torch_dtype: bfloat16,
vocab_size: 151936}
""")
GPT_OSS = yaml.safe_load("""
{model_type: gpt_oss, architectures: [GptOssForCausalLM], attention_bias: true, experts_per_token: 4, head_dim: 64,
hidden_size: 2880, initial_context_length: 4096, intermediate_size: 2880, max_position_embeddings: 131072,
num_attention_heads: 64, num_experts_per_tok: 4, num_hidden_layers: 24, num_key_value_heads: 8, num_local_experts: 32,
quantization_config: {quant_method: mxfp4}, rope_scaling: {factor: 32.0, rope_type: yarn}, rope_theta: 150000,
sliding_window: 128, swiglu_limit: 7.0, torch_dtype: bfloat16, vocab_size: 201088}
""") | {"layer_types": ["sliding_attention", "full_attention"] * 12}
DEEPSEEK_V3 = yaml.safe_load("""
{model_type: deepseek_v3, architectures: [DeepseekV3ForCausalLM], aux_loss_alpha: 0.001, ep_size: 1,
first_k_dense_replace: 3, hidden_size: 7168, intermediate_size: 18432, kv_lora_rank: 512,
max_position_embeddings: 163840,
moe_intermediate_size: 2048, moe_layer_freq: 1, n_group: 8, n_routed_experts: 256, n_shared_experts: 1,
norm_topk_prob: true, num_attention_heads: 128, num_experts_per_tok: 8, num_hidden_layers: 61, num_key_value_heads: 128,
num_nextn_predict_layers: 1, q_lora_rank: 1536, qk_nope_head_dim: 128, qk_rope_head_dim: 64, scoring_func: sigmoid,
quantization_config: {quant_method: fp8}, torch_dtype: bfloat16, v_head_dim: 128, vocab_size: 129280}
""")
LLAMA, GPT2, GPT_NEOX = map(json.loads, (HF_LLAMA, HF_GPT2, HF_GPT_NEOX))
WINDOWED = {"use_sliding_window": True, "sliding_window": 4096}
OTHER_NAMES = {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8, "max_position_embeddings": 512}
"""GPT-2 takes these keys, which the other types have, as well."""
SMALL = {"gemma2": {"hidden_size": 2048}}
"""Sizes for the types whose default head size is not the usual one."""


def read(config: dict[str, Any]):
    return read_hf_config(json.dumps(config))


def read_yaml(text: str):
    return read(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (LLAMA, 8_030_261_248),
        (MISTRAL, 7_241_732_096),
        (PHI3, 3_821_079_552),
        (QWEN2, 7_615_616_512),
        (QWEN3_MOE, 30_532_122_624),
        (GPT_OSS, 20_914_757_184),
        (DEEPSEEK_V3 | {"num_nextn_predict_layers": 0}, 671_026_404_352),
    ],
)
def test_a_model_has_the_parameters_of_the_published_one(config, published):
    before_padding = {"vocab_size": config["vocab_size"], "seq_length": 1}
    assert ModelShape(**read(config).model | before_padding).parameters == published


def test_the_longest_sequence_is_not_taken_for_the_length_of_training():
    found = read_hf_config(HF_LLAMA)
    assert looks_like_hf(LLAMA)
    assert "seq_length" not in found.model
    origins = {"space.precision": "torch_dtype", "model.num_layers": "num_hidden_layers", "model.norm": "model_type"}
    assert origins.items() <= found.origins.items()


DEFAULTS = {
    "llama": (32, 4096, 32, 32, 11008, 32000, False),
    "gpt2": (12, 768, 12, 12, 3072, 50304, True),
    "mistral": (32, 4096, 32, 8, 14336, 32000, False),
    "gemma2": (26, 2048, 8, 4, 9216, 256000, True),
    "nemotron": (32, 6144, 48, 48, 24576, 256000, False),
    "deepseek_v3": (61, 7168, 128, 128, 18432, 129280, False),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_absent_keys_have_the_defaults_of_the_model_type(kind):
    model = read({"model_type": kind, **SMALL.get(kind, {})}).model
    names = ("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "ffn_hidden_size", "vocab_size")
    assert tuple(model[name] for name in (*names, "tied_embeddings")) == DEFAULTS[kind]


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_reader_keeps_to_its_table(kind, monkeypatch):
    table, base = FAMILIES[kind].table, {"model_type": kind, **SMALL.get(kind, {})}
    windowed = {"use_sliding_window": True, "sliding_window": 64, "num_key_value_heads": 4, "head_dim": 256}
    require_table(read_yaml, table, base, [{**base, **OTHER_NAMES, **windowed}], monkeypatch)


@pytest.mark.parametrize(
    ("fields", "precision", "note"),
    [
        ({"torch_dtype": "torch.bfloat16"}, "bf16", None),
        ({"torch_dtype": None, "dtype": "float32"}, "fp32", None),  # the key's name in transformers since 4.56
        ({"torch_dtype": "float8_e4m3fn"}, None, "torch_dtype 'float8_e4m3fn' is not a supported precision: fp32"),
        ({"torch_dtype": 16}, None, "torch_dtype 16 is not a supported precision: fp32 was assumed;"),
    ],
)
def test_the_precision_is_that_of_the_configs_weights_where_it_is_one_of_ours(fields, precision, note):
    found = read(LLAMA | fields)
    assert found.layout.get("precision") == precision
    assert [text.startswith(note) for text in found.notes if "precision" in text] == ([True] if note else [])


@pytest.mark.parametrize(
    ("base", "fields", "note"),
    [
        (LLAMA, {"attention_bias": True}, "attention_bias was left out: all linear layers of a model"),
        (LLAMA, {"hidden_act": "quick_gelu"}, "hidden_act is quick_gelu; the MLP of trials has SiLU."),
        (LLAMA, {"attention_dropout": 0.1}, "Trials train without dropout; the model has attention_dropout 0.1."),
        (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "The model rotates 0.5 of each head"),
        (LLAMA, {"intermediate_sise": 1}, "intermediate_sise was left out: it is no option of transformers"),
        (QWEN2, WINDOWED, "sliding_window was left out"),
        (QWEN3_MOE, {"norm_topk_prob": False}, "norm_topk_prob is false: the softmax is over all experts"),
        (GPT_OSS, {}, "quantization_config was left out: it is the format of the published weights"),
        (GPT_OSS, {"swiglu_limit": 5}, "swiglu_limit was left out"),
        (DEEPSEEK_V3, {}, "The model weights experts by sigmoids"),
    ],
)
def test_a_difference_from_a_trial_is_noted(base, fields, note):
    assert any(each.startswith(note) for each in read(base | fields).notes)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (QWEN3_MOE, {"num_experts": 128, "experts_per_token": 8, "expert_ffn_hidden_size": 768, "qk_norm": True}),
        (QWEN3_MOE | {"mlp_only_layers": [0]}, {"num_dense_layers": 1, "expert_layer_every": 1}),
        (QWEN3_MOE | {"decoder_sparse_step": 2}, {"num_dense_layers": 0, "expert_layer_every": 2}),
        (GPT_OSS, {"num_experts": 32, "activation": "clamped_swiglu", "linear_biases": True, "attention_sinks": True}),
        (GPT_OSS, {"sliding_window": 128, "full_attention_every": 2, "rotary_base": 150_000}),
        (DEEPSEEK_V3, {"num_dense_layers": 3, "shared_expert_ffn_hidden_size": 2048, "num_mtp_layers": 1}),
        (DEEPSEEK_V3, {"key_value_latent_size": 512, "query_latent_size": 1536, "attention_head_size": 192}),
        (DEEPSEEK_V3 | {"first_k_dense_replace": 0}, {"num_dense_layers": 0, "rotary_head_size": 64}),
    ],
)
def test_experts_and_latent_attention_are_read(config, fields):
    assert fields.items() <= read(config).model.items()


def test_null_is_no_latent_of_queries_no_shared_expert_and_one_key_value_head_for_each_head():
    model = read(DEEPSEEK_V3 | {"q_lora_rank": None, "n_shared_experts": 0}).model
    assert {"query_latent_size", "shared_expert_ffn_hidden_size"}.isdisjoint(model)
    model = read({"model_type": "gpt2", **OTHER_NAMES}).model
    assert (model["num_layers"], model["hidden_size"], model["num_attention_heads"]) == (2, 2048, 8)
    assert read(MISTRAL | {"num_key_value_heads": None}).model["num_key_value_heads"] == 32


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (MISTRAL | {"sliding_window": None}, "sliding_window"),
        (GEMMA2 | {"attn_logit_softcapping": None}, "attn_logit_softcapping"),
        (PHI3, "rope_scaling"),
        (GPT_NEOX | {"rotary_pct": 1.0}, "rotates"),
        (GPT_NEOX | {"use_parallel_residual": False}, "in parallel"),
    ],
)
def test_what_is_off_or_changes_nothing_is_not_noted(config, word):
    assert not [note for note in read(config).notes if word in note]


@pytest.mark.parametrize(
    ("config", "features"),
    [
        (LLAMA | {"rope_theta": 10000.0, "rope_scaling": None}, {}),
        (LLAMA | {"head_dim": 64, "rope_theta": 5e5}, {"attention_head_size": 64, "rotary_base": 500_000}),
        (LLAMA | {"rope_parameters": {"rope_theta": 2e6}}, {"rotary_base": 2_000_000}),
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, {"linear_biases": True}),
        (LLAMA | {"hidden_act": "gelu"}, {"activation": "gelu"}),
        (GPT_NEOX | {"rotary_emb_base": 25000}, {"rotary_base": 25_000}),
        (QWEN2 | WINDOWED | {"max_window_layers": 0}, {"qkv_bias": True, "sliding_window": 4096}),
        ({"model_type": "qwen3", "hidden_size": 1024}, {"qk_norm": True, "attention_head_size": 128}),
        ({"model_type": "nemotron", "attention_bias": True, "mlp_bias": True}, {"activation": "squared_relu"}),
        (GEMMA2 | {"layer_types": ["sliding_attention"] * 26}, {"activation": "gelu", "post_norms": True}),
    ],
)
def test_features_of_a_model_are_read(config, features):
    found = read(config).model
    asked = [name for name in MODEL_DEFAULTS if name in found and (name != "rotary_base" or name in features)]
    assert {name: found[name] for name in asked} == features


@pytest.mark.parametrize(
    ("config", "key", "rule"),
    [
        (LLAMA | {"quantization_config": {"bits": 4}}, "quantization_config", "8-bit and 4-bit"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention", "without cross-attention"),
        (GEMMA2 | {"use_bidirectional_attention": True}, "use_bidirectional_attention", "earlier tokens only"),
        (LLAMA | {"architectures": ["LlamaForClassification"]}, "architectures", "a search trains a language model"),
        (QWEN3_MOE | {"mlp_only_layers": [7]}, "mlp_only_layers", "expert_layer_every"),
        (DEEPSEEK_V3 | {"moe_layer_freq": 2}, "moe_layer_freq", "expert_layer_every"),
        ({"model_type": "gpt2", "n_layer": -1}, "n_layer", "a whole number of at least 1"),
        ({"model_type": "gpt2", "tie_word_embeddings": "perhaps"}, "tie_word_embeddings", "true or false"),
        ({"model_type": "gpt2", "n_embd": 770}, "model.hidden_size", "must be a multiple of num_attention_heads 12"),
        (LLAMA | {"num_key_value_heads": 5}, "model.num_attention_heads", "must be a multiple"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(config, key, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(config)
    assert [problem.key for problem in refused.value.problems] == [key]


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"model_type": "a_new_one", "num_experts": 8}, "experts of this model type are not read"),
        ({"model_type": "gemma3"}, "images and sound are no part of a model"),
        ({"model_type": "mamba"}, "layers without attention are no part of a model"),
        ({"model_type": "falcon"}, "the model types that can be read are llama, gpt2, gpt_neox, qwen2, qwen3, mistral"),
        ({}, "the model types that can be read are"),
    ],
)
def test_another_model_type_is_refused_by_name(config, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(config)
    (problem,) = refused.value.problems
    assert (problem.key, problem.value) == ("model_type", config.get("model_type"))
    assert "qwen3, mistral, gemma2, phi3" in (problem.rule or "")
    assert not FAMILIES.keys() & OTHER_MODELS.keys()
