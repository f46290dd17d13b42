from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

from orchestrator.config.importers.hf_config import FAMILIES, read_hf_config
from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from tests.orchestrator.config.importers.samples import CORPUS

PUBLISHED = {
    "deepseek_v3": 671_026_404_352,
    "gemma2": 27_227_128_320,
    "gpt2": 774_030_080,
    "gpt_neox": 1_414_647_808,
    "gpt_oss": 20_914_757_184,
    "llama": 8_030_261_248,
    "mistral": 7_248_023_552,
    "mixtral": 46_702_792_704,
    "phi3": 3_821_079_552,
    "qwen2": 7_615_616_512,
    "qwen3": 8_190_735_360,
    "qwen3_moe": 30_532_122_624,
}
"""Parameters of the models in the corpus, as they were published."""
CONFIGS = {kind: json.loads((CORPUS / f"hf_{kind}.json").read_text(encoding="utf-8")) for kind in PUBLISHED}
LLAMA, GPT2 = CONFIGS["llama"], CONFIGS["gpt2"]
WINDOWED = {"use_sliding_window": True, "sliding_window": 4096}


def read(config: dict[str, Any]):
    return read_hf_config(json.dumps(config))


@pytest.mark.parametrize("kind", PUBLISHED)
def test_a_model_has_the_parameters_of_the_published_one(kind):
    config = CONFIGS[kind]
    not_counted = {"vocab_size": config["vocab_size"], "seq_length": config.get("n_positions", 1), "num_mtp_layers": 0}
    assert ModelShape(**{**read(config).model, **not_counted}).parameters == PUBLISHED[kind]


@pytest.mark.slow
@pytest.mark.parametrize("others", [{}, {"use_sliding_window": True}])
@pytest.mark.parametrize("kind", FAMILIES)
def test_absent_keys_have_the_values_that_transformers_gives_them(kind, others):
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: the extra `trainers`")
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind](**others)
    found, whole = read({"model_type": kind, **others}), read(config.to_dict())
    assert found.model == whole.model
    assert {note for note in {*found.notes} ^ {*whole.notes} if not note.startswith("Not read")} == set()
    assert FAMILIES[kind].written == config.attribute_map


def test_the_longest_sequence_is_not_taken_for_the_length_of_training():
    found = read(LLAMA)
    assert "seq_length" not in found.model
    named = ("baseline.precision", "model.num_layers", "model.norm")
    assert [found.origins[name] for name in named] == ["torch_dtype", "num_hidden_layers", "llama's default"]


def test_the_precision_is_that_of_the_configs_weights_where_it_is_one_of_ours():
    assert read(LLAMA | {"torch_dtype": "torch.float16"}).layout == {"precision": "fp16"}
    assert read(LLAMA | {"torch_dtype": None, "dtype": "float32"}).layout == {"precision": "fp32"}  # since 4.56
    for other in ("float8_e4m3fn", 16):
        found = read(LLAMA | {"torch_dtype": other})
        assert found.layout == {}
        assert [note for note in found.notes if "not a supported precision: fp32 was assumed" in note]


@pytest.mark.parametrize(
    ("kind", "fields", "changed"),
    [
        ("llama", {"rope_theta": 1e4}, {"rotary_base": None}),
        ("llama", {"rope_parameters": {"rope_theta": 2e6}}, {"rotary_base": 2_000_000}),
        ("llama", {"attention_bias": True, "mlp_bias": True}, {"linear_biases": True}),
        ("gpt_neox", {"rotary_emb_base": 25_000}, {"rotary_base": 25_000}),
        ("mistral", {"num_key_value_heads": None}, {"num_key_value_heads": 32}),
        ("qwen2", WINDOWED | {"max_window_layers": 0}, {"sliding_window": 4096}),
        ("mistral", {"sliding_window": 32768}, {}),  # as long as a sequence
        ("gemma2", {"layer_types": ["sliding_attention"] * 46}, {"full_attention_every": None}),
        ("qwen3_moe", {"mlp_only_layers": [0]}, {"num_dense_layers": 1}),
        ("qwen3_moe", {"decoder_sparse_step": 2}, {"expert_layer_every": 2}),
        ("deepseek_v3", {"hidden_size": 128 * 192}, {"hidden_size": 128 * 192}),  # heads of 192 stay in the file
        ("deepseek_v3", {"q_lora_rank": None}, {"query_latent_size": None}),
        ("deepseek_v3", {"n_shared_experts": 2}, {"shared_expert_ffn_hidden_size": 4096}),
        ("deepseek_v3", {"first_k_dense_replace": 0}, {"num_dense_layers": None}),
    ],
)
def test_a_key_changes_its_fields_of_the_model(kind, fields, changed):
    before, after = read(CONFIGS[kind]).model, read(CONFIGS[kind] | fields).model
    assert {name: after.get(name) for name in before | after if before.get(name) != after.get(name)} == changed


def test_a_size_is_read_by_each_name_that_the_model_type_has_for_it():
    assert read({"model_type": "gpt2", "hidden_size": 1536}).model["hidden_size"] == 1536
    assert read({"model_type": "gpt2", "hidden_size": 1536, "n_embd": 960}).model["hidden_size"] == 960
    assert read({"model_type": "qwen3_moe", "num_local_experts": 64}).model["num_experts"] == 64  # as saved since 5.0


def test_keys_that_the_model_type_does_not_have_are_named_and_change_nothing():
    found = read(GPT2 | {"sliding_window": 64, "head_dim": 16, "use_cache": True, "rope_scaling": None, "empty": {}})
    assert found.notes[-1] == "Not read: sliding_window, head_dim, use_cache."
    assert found.model == read(GPT2).model


@pytest.mark.parametrize(
    ("kind", "fields", "without", "note"),
    [
        ("llama", {"attention_bias": True}, {}, "attention_bias was left out: all linear layers of a model"),
        ("llama", {"hidden_act": "quick_gelu"}, {}, "hidden_act is quick_gelu; the MLP of trials has SiLU"),
        ("llama", {"attention_dropout": 0.2}, {}, "Trials train without dropout; the model has attention_dropout 0.2."),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, {}, "The model rotates 0.5 of each head"),
        ("gpt_neox", {}, {"use_parallel_residual": False}, "use_parallel_residual was left out"),
        ("gemma2", {}, {"attn_logit_softcapping": None}, "attn_logit_softcapping was left out"),
        ("qwen2", WINDOWED | {"max_window_layers": 14}, WINDOWED, "sliding_window 4096 was left out"),
        ("qwen3_moe", {"norm_topk_prob": False}, {}, "norm_topk_prob is false: the softmax is over all experts"),
    ],
)
def test_a_difference_from_a_trial_is_noted_where_there_is_one(kind, fields, without, note):
    assert [text for text in read(CONFIGS[kind] | fields).notes if text.startswith(note)]
    assert not [text for text in read(CONFIGS[kind] | without).notes if text.startswith(note)]


@pytest.mark.parametrize(
    ("kind", "fields", "key", "rule"),
    [
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config", "8-bit and 4-bit"),
        ("llama", {"num_local_experts": 8}, "num_local_experts", "experts of this model type are not read"),
        ("llama", {"architectures": ["LlamaForClassification"]}, "architectures", "predicts the next token"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention", "cross-attention"),
        ("gpt2", {"n_layer": -1}, "n_layer", "a whole number from 1 to"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention", "earlier tokens only"),
        ("qwen3_moe", {"mlp_only_layers": [7]}, "mlp_only_layers", "expert_layer_every"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq", "expert_layer_every"),
        ("a_new_one", {"num_experts": 8}, "model_type", "experts of this model type are not read"),
        ("gemma3", {"vision_config": {"a": 1}}, "model_type", "images and sound are no part of a model"),
        ("mamba", {"state_size": 16}, "model_type", "layers without attention are no part of a model"),
        (None, {}, "model_type", "the model types that can be read are llama, gpt2, gpt_neox, qwen2, qwen3, mistral"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(kind, fields, key, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read(CONFIGS.get(kind, {"model_type": kind}) | fields)
    assert [problem.key for problem in refused.value.problems] == [key]
