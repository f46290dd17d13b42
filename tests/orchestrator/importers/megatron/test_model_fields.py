from __future__ import annotations

import pytest

from orchestrator.importers.launch_script import read_launch_script


def model_of(options: str):
    command = "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 8"
    return read_launch_script(f"{command} {options}").model


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--group-query-attention", "num_key_value_heads", 1),
        ("", "num_key_value_heads", 8),
        ("--deepspeed --num-key-value-heads 2", "num_key_value_heads", 2),
        ("--tokenizer-type GPT2BPETokenizer --vocab-size 51200", "vocab_size", 50304),
        ("--deepspeed --vocab-size 51200", "vocab_size", 50304),
        ("--tokenizer-type TikTokenizer --vocab-size 51200", "vocab_size", 51200),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000", "vocab_size", 32000),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000 --padded-vocab-size 32768", "vocab_size", 32768),
        ("--deepspeed --tokenizer-type NullTokenizer --vocab-size 51200", "vocab_size", 51328),
        ("--kv-channels 128", "attention_head_size", 128),
        ("--deepspeed --kv-channels 128", "attention_head_size", 128),
        ("--disable-bias-linear --add-qkv-bias", "qkv_bias", True),
        ("--qk-layernorm", "qk_norm", True),
        ("--squared-relu", "activation", "squared_relu"),
        ("--deepspeed --squared-relu", "activation", "squared_relu"),
        ("--disable-bias-linear", "linear_biases", False),
        ("--normalization RMSNorm", "linear_biases", True),
    ],
)
def test_an_option_sets_its_model_field(options, field, value):
    assert model_of(options)[field] == value


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ("--kv-channels $KV", "attention_head_size"),
        ("--kv-channels 32", "attention_head_size"),
        ("--add-qkv-bias", "qkv_bias"),
        ("--deepspeed --disable-bias-linear --add-qkv-bias", "qkv_bias"),
        ("--deepspeed --qk-layernorm", "qk_norm"),
        ("--normalization RMSNorm --disable-bias-linear", "linear_biases"),
    ],
)
def test_a_field_is_left_out_where_it_has_the_usual_value_or_the_trainer_has_no_such_option(options, field):
    assert field not in model_of(options)
