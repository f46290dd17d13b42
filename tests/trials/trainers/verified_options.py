"""Every option and key that a recipe's exports use, as the trainers declare it, and the source of that.

No trainer but DeepSpeed can be installed where these tests run, so their parsers are rebuilt from these lists.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

FLAG = None
"""An option without a value."""


def _declared(**names: str) -> dict[str, Any]:
    """Options by the kind of their value."""
    return {name: _KINDS[kind] for kind, listed in names.items() for name in listed.split()}


_KINDS: Mapping[str, Any] = {
    "flags": FLAG,
    "ints": int,
    "floats": float,
    "texts": str,
    "truths": bool,
    "lists": list,
    "tuples": tuple,
    "mappings": dict,
}

_BOTH: Mapping[str, Any] = {
    **_declared(
        ints="""
            tensor-model-parallel-size pipeline-model-parallel-size micro-batch-size global-batch-size
            recompute-num-layers num-layers hidden-size ffn-hidden-size num-attention-heads seq-length
            max-position-embeddings kv-channels make-vocab-size-divisible-by""",
        flags="sequence-parallel bf16 fp16 squared-relu swiglu untie-embeddings-and-output-weights disable-bias-linear",
        floats="attention-dropout hidden-dropout",
    ),
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
}

# NVIDIA/Megatron-LM megatron/training/arguments.py at 000c4ac24f61159c138b0975def722c65245983c;
# --use-precision-aware-optimizer and those of 8 and 4 bits by the parser of d98e8a64 (2026-08), which takes all.
MEGATRON_LM: Mapping[str, Any] = {
    **_BOTH,
    **_declared(
        ints="""
            num-virtual-stages-per-pipeline-rank cpu-offloading-num-layers num-distributed-optimizer-instances
            decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers ddp-bucket-size num-query-groups
            rotary-base window-attn-skip-freq context-parallel-size num-layers-at-start-in-bf16
            num-layers-at-end-in-bf16 expert-model-parallel-size expert-tensor-parallel-size num-experts
            moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size q-lora-rank kv-lora-rank
            qk-head-dim qk-pos-emb-head-dim v-head-dim mtp-num-layers""",
        lists="recompute-modules cuda-graph-scope cp-comm-type hierarchical-context-parallel-sizes",
        flags="""
            use-distributed-optimizer use-megatron-fsdp no-gradient-accumulation-fusion optimizer-cpu-offload
            use-precision-aware-optimizer tp-comm-overlap overlap-moe-expert-parallel-comm
            no-check-for-nan-in-loss-and-grad moe-paged-stash use-transformer-engine-op-fuser
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split use-tp-pp-dp-mapping
            overlap-grad-reduce accumulate-allreduce-grads-in-fp32 group-query-attention add-qkv-bias qk-layernorm
            no-bias-gelu-fusion fp8-param-gather fp4-param-gather reuse-grad-buf-for-mxfp8-param-ag
            first-last-layers-bf16 grad-reduce-in-bf16 quick-geglu no-bias-dropout-fusion no-rope-fusion
            moe-grouped-gemm moe-router-force-load-balancing multi-latent-attention""",
        floats="moe-expert-rank-capacity-factor glu-linear-offset activation-func-clamp-value moe-aux-loss-coeff",
        texts="window-size moe-layer-freq",
    ),
    "data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "ckpt-format": ("torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"),
    "cuda-graph-impl": ("none", "local", "transformer_engine"),
    "attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "fp8-format": ("e4m3", "hybrid"),
    "fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    "fp4-format": ("e2m1",),
    "exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "softmax-type": ("vanilla", "off-by-one", "learnable"),
    "moe-router-load-balancing-type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    "moe-router-dtype": ("fp32", "fp64"),
    "moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "rope-type": ("rope", "yarn"),
}

# microsoft/Megatron-DeepSpeed megatron/arguments.py at c84829e577dc4f3914c8f8071c95643795c700cc, and what
# deepspeed.add_config_arguments of DeepSpeed 0.19.8 adds to it.
MEGATRON_DEEPSPEED: Mapping[str, Any] = {
    **_BOTH,
    **_declared(
        flags="""
            deepspeed no-pipeline-parallel cpu-optimizer deepspeed-activation-checkpointing use-flash-attn-v2
            use-rotary-position-embeddings""",
        texts="deepspeed_config",
        ints="zero-stage num-key-value-heads rotary-position-embeddings-theta",
    ),
    "normalization": ("layernorm", "rmsnorm"),
}

# EleutherAI/gpt-neox megatron/neox_arguments/neox_args.py at 8ee67f4697ba03a618961c2bbd020ce8f9542fac and
# deepspeed_args.py at c291906d160a69118596afcfab132e74d1a96c98; what a gated MLP is made of by model/transformer.py at
# ea7aefd8 (2026-05).
GPT_NEOX: Mapping[str, Any] = {
    **_declared(
        ints="""
            num_layers hidden_size num_attention_heads num_kv_heads intermediate_size mlp_multiple_of seq_length
            max_position_embeddings rotary_emb_base pipe_parallel_size model_parallel_size
            make_vocab_size_divisible_by train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps
            checkpoint_num_layers""",
        mappings="data_types zero_optimization fp16 bf16",
        truths="""
            no_weight_tying use_bias_in_attn_linear use_bias_in_mlp use_qk_layernorm sequence_parallel
            checkpoint_activations""",
        lists="attention_config",
    ),
    "activation": ("gelu", "geglu", "relu", "silu", "reglu", "swiglu"),
    "norm": ("layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm"),
    "pos_emb": ("learned", "rotary", "sinusoidal", "rpe", "alibi", "none"),
    "precision": ("fp16", "fp32", "bfloat16"),
}

# huggingface/nanotron src/nanotron/config: config.py at 00708b80c88ee7c05c89502e80c3201df916d774, parallelism_config.py
# at 19f88fbe454691f9bfcf98d6e3433dd7bcb82389, models_config.py at 025f31413c6ea6a0fb6a5e35063b780ee91aba79.
NANOTRON: Mapping[str, Any] = {
    **_declared(
        ints="""
            model.model_config.num_hidden_layers model.model_config.hidden_size model.model_config.intermediate_size
            model.model_config.num_attention_heads model.model_config.num_key_value_heads
            model.model_config.vocab_size model.model_config.max_position_embeddings optimizer.zero_stage
            parallelism.dp parallelism.pp parallelism.tp tokens.sequence_length tokens.micro_batch_size
            tokens.batch_accumulation_per_replica""",
        floats="model.model_config.rope_theta",
        truths="""
            model.model_config.tie_word_embeddings model.model_config.is_qwen2_config
            model.model_config.attention_bias parallelism.recompute_layer parallelism.tp_linear_async_communication""",
        texts="model.model_config.hidden_act",
    ),
    "model.dtype": ("float32", "bfloat16", "float16"),
    "parallelism.pp_engine": ("1f1b", "afab"),
    "parallelism.tp_mode": ("ALL_REDUCE", "REDUCE_SCATTER"),
}

# The packages megatron-bridge 0.6.0 (training/config.py, models/gpt_provider.py, training/mixed_precision.py) and
# megatron-core 0.16.1 (transformer_config.py, model_parallel_config.py, distributed_data_parallel_config.py,
# optimizer_config.py). Hydra 1.3 takes the words, a null in place of a section included.
MEGATRON_BRIDGE: Mapping[str, Any] = {
    **_declared(
        ints="""
            model.tensor_model_parallel_size model.pipeline_model_parallel_size
            model.virtual_pipeline_model_parallel_size model.context_parallel_size
            model.num_layers_in_first_pipeline_stage model.num_layers_in_last_pipeline_stage
            model.cpu_offloading_num_layers model.recompute_num_layers model.num_layers model.hidden_size
            model.ffn_hidden_size model.num_attention_heads model.num_query_groups model.kv_channels
            model.rotary_base model.seq_length model.vocab_size model.mtp_num_layers model.num_moe_experts
            model.expert_model_parallel_size model.expert_tensor_parallel_size model.moe_router_topk
            model.moe_ffn_hidden_size model.moe_shared_expert_intermediate_size model.moe_router_num_groups
            model.moe_router_group_topk model.q_lora_rank model.kv_lora_rank model.qk_head_dim
            model.qk_pos_emb_head_dim model.v_head_dim dataset.seq_length train.micro_batch_size
            train.global_batch_size ddp.bucket_size ddp.num_distributed_optimizer_instances""",
        texts="model.cp_comm_type",
        lists="""
            model.hierarchical_context_parallel_sizes model.cuda_graph_scope model.recompute_modules
            model.moe_layer_freq""",
        truths="""
            model.sequence_parallel model.overlap_p2p_comm model.batch_p2p_comm model.tp_comm_overlap
            model.cpu_offloading model.use_te_rng_tracker model.moe_paged_stash
            model.use_transformer_engine_op_fuser rerun_state_machine.check_for_nan_in_loss
            ddp.check_for_nan_in_grad model.account_for_embedding_in_pipeline_split
            model.account_for_loss_in_pipeline_split model.cpu_offloading_weights model.add_qkv_bias
            model.qk_layernorm model.should_pad_vocab model.gated_linear_unit model.add_bias_linear
            model.share_embeddings_and_output_weights model.gradient_accumulation_fusion
            model.multi_latent_attention model.moe_router_pre_softmax model.moe_router_enable_expert_bias
            model.moe_grouped_gemm model.moe_shared_expert_overlap model.overlap_moe_expert_parallel_comm
            model.bias_dropout_fusion model.apply_rope_fusion ddp.use_distributed_optimizer ddp.use_megatron_fsdp
            ddp.overlap_grad_reduce ddp.overlap_param_gather optimizer.use_distributed_optimizer
            optimizer.overlap_param_gather optimizer.optimizer_cpu_offload optimizer.use_precision_aware_optimizer
            dist.use_tp_pp_dp_mapping dist.use_megatron_fsdp""",
        floats="""
            model.moe_expert_rank_capacity_factor model.moe_router_topk_scaling_factor model.moe_z_loss_coeff
            model.moe_expert_capacity_factor model.rotary_scaling_factor model.hidden_dropout
            model.attention_dropout optimizer.optimizer_offload_fraction""",
        tuples="model.window_size",
        mappings="comm_overlap",
    ),
    "model.cuda_graph_impl": ("none", "local", "transformer_engine"),
    "model.recompute_granularity": ("full", "selective"),
    "model.recompute_method": ("uniform", "block"),
    "model.softmax_type": ("vanilla", "off-by-one", "learnable"),
    "model.normalization": ("LayerNorm", "RMSNorm"),
    "model.position_embedding_type": ("learned_absolute", "rope", "yarn"),
    "model.moe_router_load_balancing_type": ("none",),
    "model.moe_router_dtype": ("fp32", "fp64"),
    "model.moe_router_score_function": ("softmax", "sigmoid"),
    "model.moe_flex_dispatcher_backend": ("deepep", "hybridep"),
    "model.moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "model.rope_type": ("rope", "yarn"),
    "mixed_precision": ("bf16_mixed",),
    "ddp.data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "checkpoint.ckpt_format": ("torch_dist", "zarr", "fsdp_dtensor"),
}
BRIDGE_MAY_BE_NULL = {
    *_declared(
        texts="""
            comm_overlap ddp.bucket_size model.expert_tensor_parallel_size model.hierarchical_context_parallel_sizes
            model.moe_expert_capacity_factor model.moe_router_group_topk model.moe_router_num_groups
            model.moe_router_topk_scaling_factor model.moe_shared_expert_intermediate_size model.moe_z_loss_coeff
            model.mtp_num_layers model.num_layers_in_first_pipeline_stage model.num_layers_in_last_pipeline_stage
            model.num_moe_experts model.q_lora_rank model.recompute_granularity model.recompute_method
            model.recompute_modules model.recompute_num_layers model.virtual_pipeline_model_parallel_size
            model.window_size"""
    )
}


def parsed_options(words: Sequence[str], declared: Mapping[str, Any]) -> argparse.Namespace:
    """The options as the trainer's own parser reads them; AssertionError for one that it would reject."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name, kind in declared.items():
        if kind is FLAG:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(kind, tuple):
            parser.add_argument(f"--{name}", choices=kind)
        elif kind is list:
            parser.add_argument(f"--{name}", nargs="*")
        else:
            parser.add_argument(f"--{name}", type=kind)
    try:
        found, unknown = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise AssertionError(f"refused: {error}") from error
    assert not unknown, f"unknown: {unknown}"
    return found


def require_declared(values: Mapping[str, Any], declared: Mapping[str, Any], may_be_null: frozenset[str] | set[str]):
    """AssertionError for a key that the trainer does not have, or a value whose type differs from its declaration."""
    for key, value in values.items():
        assert key in declared, f"unknown: {key}"
        kind = declared[key]
        if value is None:
            assert key in may_be_null, f"{key} is null"
        elif isinstance(kind, tuple):
            assert value in kind, f"{key} is {value!r}, one of {kind}"
        else:
            assert type(value) is kind, f"{key} is {value!r}, a {kind.__name__}"
