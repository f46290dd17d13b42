"""Model types of Hugging Face that a model section can describe, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.importers.hf_options import HF_OPTIONS
from orchestrator.importers.option_table import OptionTable
from search_spaces.model_shape import DEFAULT_ROTARY_BASE


@dataclass(frozen=True)
class Family:
    """A model type: transformers' values of absent keys, and what the type itself decides.

    `key_value_heads` None is one for each head, `ffn_hidden_size` None 4 x hidden size, `head_size` None the usual one.
    `features` are fields of a model that the type itself has, `full_attention_every` counts where some layers have a
    window. `dropouts` are its keys of dropout. `sizes` are the key and the default of each further field, of experts
    and latent attention; a default of None leaves the field out.
    """

    kind: str
    layers: int
    hidden_size: int
    heads: int
    vocab_size: int
    positions: int
    key_value_heads: int | None = None
    ffn_hidden_size: int | None = None
    head_size: int | None = None
    sliding_window: int | None = None
    rotated: float = 1.0
    activation: str = "silu"
    tied: bool = False
    norm: str = "rmsnorm"
    position_embedding: str = "rotary"
    is_gated: bool = True
    dropouts: Mapping[str, float] = field(default_factory=lambda: {"attention_dropout": 0.0})
    features: Mapping[str, Any] = field(default_factory=dict)
    full_attention_every: int | None = None
    rotary_base: int = DEFAULT_ROTARY_BASE
    sizes: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)

    @property
    def table(self) -> OptionTable:
        return HF_OPTIONS[self.kind]


FAMILIES: Mapping[str, Family] = {
    family.kind: family
    for family in (
        Family("llama", 32, 4096, 32, 32000, 2048, ffn_hidden_size=11008),
        Family(
            "gpt2",
            12,
            768,
            12,
            50257,
            1024,
            activation="gelu_new",
            tied=True,
            norm="layernorm",
            position_embedding="learned",
            is_gated=False,
            dropouts={"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
        ),
        Family(
            "gpt_neox",
            44,
            6144,
            64,
            50432,
            2048,
            ffn_hidden_size=24576,
            rotated=0.25,
            activation="gelu",
            norm="layernorm",
            is_gated=False,
            dropouts={"attention_dropout": 0.0, "hidden_dropout": 0.0},
        ),
        Family(
            "qwen2",
            32,
            4096,
            32,
            151936,
            32768,
            key_value_heads=32,
            ffn_hidden_size=22016,
            sliding_window=4096,
            features={"qkv_bias": True},
        ),
        Family(
            "qwen3",
            32,
            4096,
            32,
            151936,
            32768,
            key_value_heads=32,
            ffn_hidden_size=22016,
            head_size=128,
            sliding_window=4096,
            features={"qk_norm": True},
        ),
        Family("mistral", 32, 4096, 32, 32000, 131072, key_value_heads=8, ffn_hidden_size=14336, sliding_window=4096),
        Family(
            "gemma2",
            26,
            2304,
            8,
            256000,
            8192,
            key_value_heads=4,
            ffn_hidden_size=9216,
            head_size=256,
            sliding_window=4096,
            activation="gelu_pytorch_tanh",
            tied=True,
            features={"post_norms": True},
            full_attention_every=2,
        ),
        Family(
            "phi3",
            32,
            3072,
            32,
            32064,
            4096,
            ffn_hidden_size=8192,
            dropouts={"attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
        ),
        Family(
            "nemotron",
            32,
            6144,
            48,
            256000,
            4096,
            ffn_hidden_size=24576,
            rotated=0.5,
            activation="relu2",
            norm="layernorm",
            is_gated=False,
        ),
        Family(
            "mixtral",
            32,
            4096,
            32,
            32000,
            131072,
            key_value_heads=8,
            ffn_hidden_size=14336,
            rotary_base=1_000_000,
            sizes={"num_experts": ("num_local_experts", 8), "experts_per_token": ("num_experts_per_tok", 2)},
        ),
        Family(
            "qwen3_moe",
            24,
            2048,
            32,
            151936,
            32768,
            key_value_heads=4,
            ffn_hidden_size=6144,
            sliding_window=4096,
            features={"qk_norm": True},
            sizes={
                "num_experts": ("num_experts", 128),
                "experts_per_token": ("num_experts_per_tok", 8),
                "expert_ffn_hidden_size": ("moe_intermediate_size", 768),
            },
        ),
        Family(
            "gpt_oss",
            36,
            2880,
            64,
            201088,
            131072,
            key_value_heads=8,
            ffn_hidden_size=2880,
            head_size=64,
            sliding_window=128,
            features={"linear_biases": True, "attention_sinks": True, "activation": "clamped_swiglu"},
            full_attention_every=2,
            rotary_base=150_000,
            sizes={"num_experts": ("num_local_experts", 128), "experts_per_token": ("num_experts_per_tok", 4)},
        ),
        Family(
            "deepseek_v3",
            61,
            7168,
            128,
            129280,
            4096,
            ffn_hidden_size=18432,
            sizes={
                "num_experts": ("n_routed_experts", 256),
                "experts_per_token": ("num_experts_per_tok", 8),
                "expert_ffn_hidden_size": ("moe_intermediate_size", 2048),
                "num_dense_layers": ("first_k_dense_replace", 3),
                "key_value_latent_size": ("kv_lora_rank", 512),
                "query_latent_size": ("q_lora_rank", 1536),
                "rotary_head_size": ("qk_rope_head_dim", 64),
                "value_head_size": ("v_head_dim", 128),
                "num_mtp_layers": ("num_nextn_predict_layers", None),
            },
        ),
    )
}

OTHER_EXPERTS = "experts of this model type are not read"
OTHER_MODELS: Mapping[str, str] = {
    kind: reason
    for reason, kinds in (
        (
            OTHER_EXPERTS,
            """
            dbrx deepseek_v2 deepseek_v32 ernie4_5_moe glm4_moe granitemoe hunyuan_v1_moe kimi_k2 minimax minimax_m2
            olmoe phimoe qwen2_moe qwen3_5_moe qwen3_next
            """,
        ),
        (
            "a model is a decoder, without an encoder",
            """
            albert bart bert deberta deberta-v2 distilbert electra ernie longformer mbart modernbert mt5 nomic_bert
            pegasus roberta t5 umt5 whisper xlm-roberta
            """,
        ),
        (
            "images and sound are no part of a model",
            """
            gemma3 gemma3n gemma4 idefics3 internvl llama4 llava llava_next mistral3 mllama paligemma phi4_multimodal
            qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_vl qwen3_5 qwen3_vl smolvlm voxtral
            """,
        ),
        (
            "layers without attention are no part of a model",
            """
            bamba falcon_h1 falcon_mamba granitemoehybrid jamba lfm2 mamba mamba2 nemotron_h recurrent_gemma rwkv xlstm
            zamba zamba2
            """,
        ),
    )
    for kind in kinds.split()
}
"""The reason why a model section cannot describe a model type; other types are not known."""
