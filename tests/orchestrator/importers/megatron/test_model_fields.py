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
        ("--softmax-type learnable", "attention_sinks", True),
        ("--window-size '(127, 0)'", "sliding_window", 128),
        ("--window-size 127,0 --window-attn-skip-freq 2", "full_attention_every", 2),
        ("--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7", "activation", "clamped_swiglu"),
        ("--num-experts 8", "experts_per_token", 2),
        ("--num-experts 8 --moe-router-topk 4", "experts_per_token", 4),
        ("--num-experts 8 --moe-ffn-hidden-size 96", "expert_ffn_hidden_size", 96),
        ("--num-experts 8 --moe-shared-expert-intermediate-size 32", "shared_expert_ffn_hidden_size", 32),
        ("--num-experts 8 --moe-layer-freq '([0]*1+[1]*3)'", "num_dense_layers", 1),
        ("--num-experts 8 --moe-layer-freq [0,1]*2", "expert_layer_every", 2),
        ("--mtp-num-layers 2", "num_mtp_layers", 2),
        ("--multi-latent-attention", "key_value_latent_size", 32),
        ("--multi-latent-attention --qk-head-dim 96", "attention_head_size", 160),
        ("--multi-latent-attention --v-head-dim 48", "value_head_size", 48),
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
        ("--num-experts 0 --moe-router-topk 4", "experts_per_token"),
        ("--multi-latent-attention --qk-layernorm", "qk_norm"),
        ("--mtp-num-layers 0", "num_mtp_layers"),
    ],
)
def test_a_field_is_left_out_where_it_has_the_usual_value_or_the_trainer_has_no_such_option(options, field):
    assert field not in model_of(options)
