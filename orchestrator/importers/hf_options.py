"""Keys of a Hugging Face config.json: what each one means for an import, by model type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionGroup, OptionTable, option_groups

_SOURCE = "transformers 5.23 or 4.57, models/{0}/configuration_{0}.py"
_OTHER_TASKS = "it is only for the generation of text or for other tasks than language modelling"

_NEUTRAL = {
    "attention_bias": "true",
    "moe_layer_freq": "1",
    "output_router_logits": "false",
    "router_aux_loss_coef": "0|0.0",
    "aux_loss_alpha": "0|0.0",
    "router_jitter_noise": "0|0.0",
    "swiglu_alpha": "1.702",
    "swiglu_limit": "7|7.0",
    "chunk_size_feed_forward": "0",
    "pretraining_tp": "1",
    "scale_attn_weights": "true",
    "use_cache": "true|false",
}
_COMMON = option_groups(
    read="architectures= dtype= model_type= tie_word_embeddings= torch_dtype= vocab_size=",
    no_effect={
        _OTHER_TASKS: """
            bad_words_ids= begin_suppress_tokens= bos_token_id= cache_implementation= decoder_start_token_id=
            diversity_penalty= do_sample= early_stopping= encoder_no_repeat_ngram_size= eos_token_id=
            exponential_decay_length_penalty= finetuning_task= forced_bos_token_id= forced_eos_token_id= id2label=
            is_decoder= label2id= length_penalty= max_length= min_length= no_repeat_ngram_size= num_beam_groups=
            num_beams= num_labels= num_return_sequences= output_attentions= output_hidden_states= output_scores=
            pad_token_id= prefix= problem_type= remove_invalid_values= repetition_penalty= return_dict=
            return_dict_in_generate= sep_token_id= suppress_tokens= task_specific_params= temperature=
            tie_encoder_decoder= tokenizer_class= top_k= top_p= typical_p= use_cache=
            """,
        "it only says where the file comes from or how it is loaded": """
            _attn_implementation_autoset= _commit_hash= _name_or_path= name_or_path= tf_legacy_loss= torchscript=
            transformers_version= use_bfloat16=
            """,
        reasons.LEARNING: "initializer_range=",
    },
    noted={
        "with trust_remote_code its program is the model, and it was not read": "auto_map=",
        "the program that trains chooses it, and a search compares the choices": """
            _attn_implementation= attn_implementation= gradient_checkpointing=
            """,
        reasons.ARITHMETIC: "chunk_size_feed_forward=",
    },
    refused={
        "a model is a decoder without cross-attention": """
            add_cross_attention= cross_attention_hidden_size= is_encoder_decoder=
            """,
        "8-bit and 4-bit weights are no values of precision": "compression_config= quantization_config=",
        reasons.NO_MODEL_FIELD: "per_layer_config= pruned_heads=",
    },
)
_ROTARY = option_groups(
    read="""
        attention_dropout= hidden_act= hidden_size= intermediate_size= max_position_embeddings= num_attention_heads=
        num_hidden_layers= partial_rotary_factor= rope_parameters= rope_scaling= rope_theta=
        """,
)
_LLAMA = option_groups(
    read="head_dim= num_key_value_heads=",
    no_effect={reasons.LEARNING: "rms_norm_eps="},
)
_QWEN = option_groups(read="layer_types= max_window_layers= sliding_window= use_sliding_window=")

_EXPERTS = option_groups(
    read="num_experts_per_tok=",
    noted={reasons.NO_AUXILIARY_LOSS: "output_router_logits= router_aux_loss_coef="},
)
_STORED = option_groups(noted={"it is the format of the published weights": "compression_config= quantization_config="})

_GROUPS: Mapping[str, tuple[OptionGroup, ...]] = {
    "llama": (
        *_ROTARY,
        *_LLAMA,
        *option_groups(
            read="attention_bias= mlp_bias=",
            noted={reasons.ARITHMETIC: "pretraining_tp="},
        ),
    ),
    "gpt2": option_groups(
        read="""
            activation_function= attn_pdrop= embd_pdrop= hidden_size= max_position_embeddings= n_embd= n_head= n_inner=
            n_layer= n_positions= num_attention_heads= num_hidden_layers= resid_pdrop=
            """,
        no_effect={
            reasons.LEARNING: "layer_norm_epsilon=",
            _OTHER_TASKS: """
                summary_activation= summary_first_dropout= summary_proj_to_labels= summary_type= summary_use_proj=
                """,
            "n_positions says the same, and transformers reads that": "n_ctx=",
        },
        noted={reasons.ARITHMETIC: "reorder_and_upcast_attn= scale_attn_by_inverse_layer_idx= scale_attn_weights="},
    ),
    "gpt_neox": (
        *_ROTARY,
        *option_groups(
            read="attention_bias= hidden_dropout= rotary_emb_base= rotary_pct= use_parallel_residual=",
            no_effect={
                reasons.LEARNING: "layer_norm_eps=",
                _OTHER_TASKS: "classifier_dropout=",
            },
        ),
    ),
    "qwen2": (*_ROTARY, *_LLAMA, *_QWEN),
    "qwen3": (*_ROTARY, *_LLAMA, *_QWEN, *option_groups(read="attention_bias=")),
    "mistral": (*_ROTARY, *_LLAMA, *option_groups(read="sliding_window=")),
    "gemma2": (
        *_ROTARY,
        *_LLAMA,
        *option_groups(
            read="""
                attention_bias= attn_logit_softcapping= final_logit_softcapping= hidden_activation= layer_types=
                sliding_window=
                """,
            no_effect={
                reasons.LEARNING: "query_pre_attn_scalar=",
                "hidden_activation says it, and transformers reads that": "hidden_act=",
            },
            refused={"a model attends to earlier tokens only": "use_bidirectional_attention="},
        ),
    ),
    "phi3": (
        *_ROTARY,
        *_LLAMA,
        *option_groups(
            read="sliding_window= embd_pdrop= resid_pdrop=",
            no_effect={
                reasons.LEARNING: "original_max_position_embeddings=",
                "transformers does not use it": "attention_bias=",
            },
        ),
    ),
    "nemotron": (
        *_ROTARY,
        *option_groups(
            read="attention_bias= head_dim= mlp_bias= num_key_value_heads=",
            no_effect={reasons.LEARNING: "norm_eps="},
        ),
    ),
    "mixtral": (
        *_ROTARY,
        *_LLAMA,
        *_EXPERTS,
        *option_groups(
            read="num_local_experts= sliding_window=", noted={reasons.NO_AUXILIARY_LOSS: "router_jitter_noise="}
        ),
    ),
    "qwen3_moe": (
        *_ROTARY,
        *_LLAMA,
        *_QWEN,
        *_EXPERTS,
        *option_groups(
            read="""
                attention_bias= decoder_sparse_step= mlp_only_layers= moe_intermediate_size= norm_topk_prob=
                num_experts=
                """,
        ),
    ),
    "gpt_oss": (
        *_ROTARY,
        *_LLAMA,
        *_EXPERTS,
        *_STORED,
        *option_groups(
            read="layer_types= num_local_experts= sliding_window=",
            no_effect={
                reasons.LEARNING: "initial_context_length=",
                "num_experts_per_tok says it, and transformers reads that": "experts_per_token=",
            },
            noted={reasons.ARITHMETIC: "attention_bias= swiglu_alpha= swiglu_limit="},
        ),
    ),
    "deepseek_v3": (
        *_ROTARY,
        *_EXPERTS,
        *_STORED,
        *option_groups(
            read="""
                first_k_dense_replace= kv_lora_rank= moe_intermediate_size= n_routed_experts= n_shared_experts=
                num_nextn_predict_layers= q_lora_rank= qk_nope_head_dim= qk_rope_head_dim= v_head_dim=
                """,
            no_effect={
                reasons.LEARNING: "rms_norm_eps= rope_interleave=",
                "latent attention does not use it": "head_dim= num_key_value_heads= qk_head_dim=",
                "a note says how trials weight experts": """
                    n_group= norm_topk_prob= routed_scaling_factor= scoring_func= topk_group= topk_method=
                    """,
                "the search says over how many ranks experts are distributed": "ep_size=",
            },
            noted={
                reasons.ARITHMETIC: "attention_bias= pretraining_tp=",
                reasons.NO_AUXILIARY_LOSS: "aux_loss_alpha= seq_aux=",
            },
            refused={reasons.EXPERT_LAYERS: "moe_layer_freq="},
        ),
    ),
}


def _table(kind: str) -> OptionTable:
    table = OptionTable("Hugging Face", _SOURCE.format(kind), _COMMON)
    for group in _GROUPS[kind]:
        table = table.with_groups((group,))
    neutral = {name: value for name, value in _NEUTRAL.items() if name in table.group_of}
    return replace(table, neutral=neutral | ({"attention_bias": "false"} if kind == "deepseek_v3" else {}))


HF_OPTIONS: Mapping[str, OptionTable] = {kind: _table(kind) for kind in _GROUPS}
