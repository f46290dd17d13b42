from __future__ import annotations

import json

import pytest

from orchestrator.importers.hf_config import read_hf_config
from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from tests.trials.trainers.samples import HF_GPT2, HF_GPT_NEOX, HF_LLAMA


def test_gpt2_has_the_parameters_the_published_model_has():
    found = read_hf_config(HF_GPT2)
    unpadded = ModelShape(**found.model | {"vocab_size": 50257})
    assert unpadded.parameters == 124_439_808
    assert found.model["vocab_size"] == 50304
    assert found.notes == (
        "vocab_size 50257 was padded to 50304, a multiple of 128.",
        "torch_dtype is not in the config: fp32 was assumed; set space.precision to the one you train in.",
    )


def test_llama_has_the_parameters_the_published_model_has():
    found = read_hf_config(HF_LLAMA)
    assert ModelShape(**found.model).parameters == 8_030_261_248
    assert found.notes == ()
    assert found.layout == {"precision": "bf16"}


def test_gpt_neox_is_read_and_its_parallel_residual_reported():
    found = read_hf_config(HF_GPT_NEOX)
    model = ModelShape(**found.model)
    assert (model.position_embedding, model.norm, model.gated_mlp) == ("rotary", "layernorm", False)
    assert found.layout == {"precision": "fp16"}
    assert len(found.notes) == 1
    assert "in parallel" in found.notes[0]


def test_a_head_size_of_its_own_and_biases_are_reported():
    config = json.loads(HF_LLAMA) | {"head_dim": 64, "attention_bias": True}
    assert len(read_hf_config(json.dumps(config)).notes) == 2


@pytest.mark.parametrize(
    ("fields", "precision", "note"),
    [
        ({"torch_dtype": "float16"}, "fp16", None),
        ({"torch_dtype": "torch.bfloat16"}, "bf16", None),
        ({"torch_dtype": None, "dtype": "float32"}, "fp32", None),  # the key's name in transformers since 4.56
        (
            {"torch_dtype": "float8_e4m3fn"},
            None,
            "torch_dtype 'float8_e4m3fn' is not a supported precision: fp32 was assumed;",
        ),
        ({"torch_dtype": 16}, None, "torch_dtype 16 is not a supported precision: fp32 was assumed;"),
    ],
)
def test_the_precision_is_that_of_the_configs_weights_where_it_is_one_of_ours(fields, precision, note):
    found = read_hf_config(json.dumps(json.loads(HF_LLAMA) | fields))
    assert found.layout.get("precision") == precision
    assert [text.startswith(note) for text in found.notes] == ([True] if note else [])


def test_a_missing_size_is_left_out_and_reported():
    config = json.loads(HF_GPT2)
    del config["n_layer"]
    found = read_hf_config(json.dumps(config))
    assert "num_layers" not in found.model
    assert "num_layers is not in the config." in found.notes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nope", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"model_type": "bert"}', "model_type is 'bert'"),
        ("{}", "model_type is null"),
        ('{"model_type": "gpt2", "n_layer": -1}', "n_layer is -1"),
        ('{"model_type": "gpt2", "n_layer": true}', "n_layer is true"),
        ('{"model_type": "gpt2", "tie_word_embeddings": "yes"}', "tie_word_embeddings is 'yes'"),
    ],
)
def test_a_config_that_describes_no_known_model_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        read_hf_config(text)
