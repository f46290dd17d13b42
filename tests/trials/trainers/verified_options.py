"""Every option and key that a recipe's exports use, as the trainers declare it, and the source of that.

No trainer but DeepSpeed can be installed where these tests run, so their parsers are rebuilt from these lists.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

FLAG = None
"""An option without a value."""

_BOTH: Mapping[str, Any] = {
    "tensor-model-parallel-size": int,
    "pipeline-model-parallel-size": int,
    "micro-batch-size": int,
    "global-batch-size": int,
    "sequence-parallel": FLAG,
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
    "recompute-num-layers": int,
    "bf16": FLAG,
    "fp16": FLAG,
    "num-layers": int,
    "hidden-size": int,
    "ffn-hidden-size": int,
    "num-attention-heads": int,
    "seq-length": int,
    "max-position-embeddings": int,
    "kv-channels": int,
    "squared-relu": FLAG,
    "make-vocab-size-divisible-by": int,
    "swiglu": FLAG,
    "untie-embeddings-and-output-weights": FLAG,
    "disable-bias-linear": FLAG,
    "attention-dropout": float,
    "hidden-dropout": float,
}

# NVIDIA/Megatron-LM megatron/training/arguments.py at 000c4ac24f61159c138b0975def722c65245983c;
# --use-precision-aware-optimizer and those of 8 and 4 bits by the parser of d98e8a64 (2026-08), which takes all.
MEGATRON_LM: Mapping[str, Any] = {
    **_BOTH,
    "num-virtual-stages-per-pipeline-rank": int,
    "recompute-modules": list,
    "use-distributed-optimizer": FLAG,
    "use-megatron-fsdp": FLAG,
    "data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "ckpt-format": ("torch", "torch_dist", "zarr", "torch_dcp", "fsdp_dtensor"),
    "no-gradient-accumulation-fusion": FLAG,
    "optimizer-cpu-offload": FLAG,
    "use-precision-aware-optimizer": FLAG,
    "cpu-offloading-num-layers": int,
    "tp-comm-overlap": FLAG,
    "overlap-moe-expert-parallel-comm": FLAG,
    "cuda-graph-impl": ("none", "local", "transformer_engine"),
    "cuda-graph-scope": list,
    "no-check-for-nan-in-loss-and-grad": FLAG,
    "moe-paged-stash": FLAG,
    "moe-expert-rank-capacity-factor": float,
    "use-transformer-engine-op-fuser": FLAG,
    "num-distributed-optimizer-instances": int,
    "account-for-embedding-in-pipeline-split": FLAG,
    "account-for-loss-in-pipeline-split": FLAG,
    "decoder-first-pipeline-num-layers": int,
    "decoder-last-pipeline-num-layers": int,
    "use-tp-pp-dp-mapping": FLAG,
    "overlap-grad-reduce": FLAG,
    "accumulate-allreduce-grads-in-fp32": FLAG,
    "ddp-bucket-size": int,
    "attention-backend": ("flash", "fused", "unfused", "local", "auto"),
    "group-query-attention": FLAG,
    "num-query-groups": int,
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "mrope", "relative", "none"),
    "rotary-base": int,
    "add-qkv-bias": FLAG,
    "qk-layernorm": FLAG,
    "no-bias-gelu-fusion": FLAG,
    "window-size": str,
    "window-attn-skip-freq": int,
    "context-parallel-size": int,
    "cp-comm-type": list,
    "hierarchical-context-parallel-sizes": list,
    "fp8-format": ("e4m3", "hybrid"),
    "fp8-recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
    "fp8-param-gather": FLAG,
    "fp4-format": ("e2m1",),
    "fp4-param-gather": FLAG,
    "reuse-grad-buf-for-mxfp8-param-ag": FLAG,
    "first-last-layers-bf16": FLAG,
    "num-layers-at-start-in-bf16": int,
    "num-layers-at-end-in-bf16": int,
    "grad-reduce-in-bf16": FLAG,
    "exp-avg-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp-avg-sq-dtype": ("fp32", "fp16", "bf16", "fp8"),
    "softmax-type": ("vanilla", "off-by-one", "learnable"),
    "quick-geglu": FLAG,
    "glu-linear-offset": float,
    "activation-func-clamp-value": float,
    "no-bias-dropout-fusion": FLAG,
    "no-rope-fusion": FLAG,
    "expert-model-parallel-size": int,
    "expert-tensor-parallel-size": int,
    "num-experts": int,
    "moe-router-topk": int,
    "moe-ffn-hidden-size": int,
    "moe-shared-expert-intermediate-size": int,
    "moe-layer-freq": str,
    "moe-router-load-balancing-type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    "moe-aux-loss-coeff": float,
    "moe-router-dtype": ("fp32", "fp64"),
    "moe-flex-dispatcher-backend": ("deepep", "hybridep"),
    "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
    "moe-grouped-gemm": FLAG,
    "moe-router-force-load-balancing": FLAG,
    "multi-latent-attention": FLAG,
    "q-lora-rank": int,
    "kv-lora-rank": int,
    "qk-head-dim": int,
    "qk-pos-emb-head-dim": int,
    "v-head-dim": int,
    "rope-type": ("rope", "yarn"),
    "mtp-num-layers": int,
}

# microsoft/Megatron-DeepSpeed megatron/arguments.py at c84829e577dc4f3914c8f8071c95643795c700cc, and what
# deepspeed.add_config_arguments of DeepSpeed 0.19.8 adds to it.
MEGATRON_DEEPSPEED: Mapping[str, Any] = {
    **_BOTH,
    "deepspeed": FLAG,
    "deepspeed_config": str,
    "zero-stage": int,
    "no-pipeline-parallel": FLAG,
    "cpu-optimizer": FLAG,
    "deepspeed-activation-checkpointing": FLAG,
    "use-flash-attn-v2": FLAG,
    "num-key-value-heads": int,
    "normalization": ("layernorm", "rmsnorm"),
    "use-rotary-position-embeddings": FLAG,
    "rotary-position-embeddings-theta": int,
}

# EleutherAI/gpt-neox megatron/neox_arguments/neox_args.py at 8ee67f4697ba03a618961c2bbd020ce8f9542fac and
# deepspeed_args.py at c291906d160a69118596afcfab132e74d1a96c98; what a gated MLP is made of by model/transformer.py at
# ea7aefd8 (2026-05).
GPT_NEOX: Mapping[str, Any] = {
    "num_layers": int,
    "hidden_size": int,
    "num_attention_heads": int,
    "num_kv_heads": int,
    "intermediate_size": int,
    "mlp_multiple_of": int,
    "activation": ("gelu", "geglu", "relu", "silu", "reglu", "swiglu"),
    "data_types": dict,
    "seq_length": int,
    "max_position_embeddings": int,
    "norm": ("layernorm", "rmsnorm", "non_parametric_layernorm", "scalenorm", "te_rmsnorm", "te_layernorm"),
    "rotary_emb_base": int,
    "pos_emb": ("learned", "rotary", "sinusoidal", "rpe", "alibi", "none"),
    "no_weight_tying": bool,
    "use_bias_in_attn_linear": bool,
    "use_bias_in_mlp": bool,
    "use_qk_layernorm": bool,
    "pipe_parallel_size": int,
    "model_parallel_size": int,
    "make_vocab_size_divisible_by": int,
    "sequence_parallel": bool,
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "zero_optimization": dict,
    "checkpoint_activations": bool,
    "checkpoint_num_layers": int,
    "attention_config": list,
    "precision": ("fp16", "fp32", "bfloat16"),
    "fp16": dict,
    "bf16": dict,
}

# huggingface/nanotron src/nanotron/config: config.py at 00708b80c88ee7c05c89502e80c3201df916d774, parallelism_config.py
# at 19f88fbe454691f9bfcf98d6e3433dd7bcb82389, models_config.py at 025f31413c6ea6a0fb6a5e35063b780ee91aba79.
NANOTRON: Mapping[str, Any] = {
    "model.dtype": ("float32", "bfloat16", "float16"),
    "model.model_config.num_hidden_layers": int,
    "model.model_config.hidden_size": int,
    "model.model_config.intermediate_size": int,
    "model.model_config.num_attention_heads": int,
    "model.model_config.num_key_value_heads": int,
    "model.model_config.vocab_size": int,
    "model.model_config.max_position_embeddings": int,
    "model.model_config.rope_theta": float,
    "model.model_config.tie_word_embeddings": bool,
    "model.model_config.hidden_act": str,
    "model.model_config.is_qwen2_config": bool,
    "model.model_config.attention_bias": bool,
    "optimizer.zero_stage": int,
    "parallelism.dp": int,
    "parallelism.pp": int,
    "parallelism.tp": int,
    "parallelism.pp_engine": ("1f1b", "afab"),
    "parallelism.tp_mode": ("ALL_REDUCE", "REDUCE_SCATTER"),
    "parallelism.recompute_layer": bool,
    "parallelism.tp_linear_async_communication": bool,
    "tokens.sequence_length": int,
    "tokens.micro_batch_size": int,
    "tokens.batch_accumulation_per_replica": int,
}

# The packages megatron-bridge 0.6.0 (training/config.py, models/gpt_provider.py, training/mixed_precision.py) and
# megatron-core 0.16.1 (transformer_config.py, model_parallel_config.py, distributed_data_parallel_config.py,
# optimizer_config.py). Hydra 1.3 takes the words, a null in place of a section included.
MEGATRON_BRIDGE: Mapping[str, Any] = {
    "model.tensor_model_parallel_size": int,
    "model.pipeline_model_parallel_size": int,
    "model.virtual_pipeline_model_parallel_size": int,
    "model.context_parallel_size": int,
    "model.cp_comm_type": str,
    "model.hierarchical_context_parallel_sizes": list,
    "model.sequence_parallel": bool,
    "model.overlap_p2p_comm": bool,
    "model.batch_p2p_comm": bool,
    "model.tp_comm_overlap": bool,
    "model.cpu_offloading": bool,
    "model.cuda_graph_impl": ("none", "local", "transformer_engine"),
    "model.cuda_graph_scope": list,
    "model.use_te_rng_tracker": bool,
    "model.moe_paged_stash": bool,
    "model.moe_expert_rank_capacity_factor": float,
    "model.use_transformer_engine_op_fuser": bool,
    "rerun_state_machine.check_for_nan_in_loss": bool,
    "ddp.check_for_nan_in_grad": bool,
    "model.account_for_embedding_in_pipeline_split": bool,
    "model.account_for_loss_in_pipeline_split": bool,
    "model.num_layers_in_first_pipeline_stage": int,
    "model.num_layers_in_last_pipeline_stage": int,
    "model.cpu_offloading_weights": bool,
    "model.cpu_offloading_num_layers": int,
    "model.recompute_granularity": ("full", "selective"),
    "model.recompute_method": ("uniform", "block"),
    "model.recompute_num_layers": int,
    "model.recompute_modules": list,
    "model.num_layers": int,
    "model.hidden_size": int,
    "model.ffn_hidden_size": int,
    "model.num_attention_heads": int,
    "model.num_query_groups": int,
    "model.kv_channels": int,
    "model.add_qkv_bias": bool,
    "model.qk_layernorm": bool,
    "model.rotary_base": int,
    "model.window_size": tuple,
    "model.softmax_type": ("vanilla", "off-by-one", "learnable"),
    "model.seq_length": int,
    "model.vocab_size": int,
    "model.should_pad_vocab": bool,
    "model.gated_linear_unit": bool,
    "model.add_bias_linear": bool,
    "model.normalization": ("LayerNorm", "RMSNorm"),
    "model.position_embedding_type": ("learned_absolute", "rope", "yarn"),
    "model.share_embeddings_and_output_weights": bool,
    "model.gradient_accumulation_fusion": bool,
    "model.mtp_num_layers": int,
    "model.num_moe_experts": int,
    "model.expert_model_parallel_size": int,
    "model.expert_tensor_parallel_size": int,
    "model.multi_latent_attention": bool,
    "model.moe_router_topk": int,
    "model.moe_ffn_hidden_size": int,
    "model.moe_shared_expert_intermediate_size": int,
    "model.moe_layer_freq": list,
    "model.moe_router_load_balancing_type": ("none",),
    "model.moe_router_dtype": ("fp32", "fp64"),
    "model.moe_router_score_function": ("softmax", "sigmoid"),
    "model.moe_router_pre_softmax": bool,
    "model.moe_router_enable_expert_bias": bool,
    "model.moe_router_num_groups": int,
    "model.moe_router_group_topk": int,
    "model.moe_router_topk_scaling_factor": float,
    "model.moe_z_loss_coeff": float,
    "model.moe_expert_capacity_factor": float,
    "model.moe_flex_dispatcher_backend": ("deepep", "hybridep"),
    "model.moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
    "model.moe_grouped_gemm": bool,
    "model.moe_shared_expert_overlap": bool,
    "model.overlap_moe_expert_parallel_comm": bool,
    "model.bias_dropout_fusion": bool,
    "model.q_lora_rank": int,
    "model.kv_lora_rank": int,
    "model.qk_head_dim": int,
    "model.qk_pos_emb_head_dim": int,
    "model.v_head_dim": int,
    "model.rope_type": ("rope", "yarn"),
    "model.rotary_scaling_factor": float,
    "model.apply_rope_fusion": bool,
    "dataset.seq_length": int,
    "model.hidden_dropout": float,
    "model.attention_dropout": float,
    "train.micro_batch_size": int,
    "train.global_batch_size": int,
    "mixed_precision": ("bf16_mixed",),
    "comm_overlap": dict,
    "ddp.use_distributed_optimizer": bool,
    "ddp.use_megatron_fsdp": bool,
    "ddp.data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "ddp.overlap_grad_reduce": bool,
    "ddp.overlap_param_gather": bool,
    "ddp.bucket_size": int,
    "ddp.num_distributed_optimizer_instances": int,
    "optimizer.use_distributed_optimizer": bool,
    "optimizer.overlap_param_gather": bool,
    "optimizer.optimizer_cpu_offload": bool,
    "optimizer.optimizer_offload_fraction": float,
    "optimizer.use_precision_aware_optimizer": bool,
    "dist.use_tp_pp_dp_mapping": bool,
    "dist.use_megatron_fsdp": bool,
    "checkpoint.ckpt_format": ("torch_dist", "zarr", "fsdp_dtensor"),
}
BRIDGE_MAY_BE_NULL = {
    "model.hierarchical_context_parallel_sizes",
    "model.virtual_pipeline_model_parallel_size",
    "model.recompute_granularity",
    "model.recompute_method",
    "model.recompute_num_layers",
    "model.recompute_modules",
    "model.num_layers_in_first_pipeline_stage",
    "model.num_layers_in_last_pipeline_stage",
    "model.window_size",
    "model.mtp_num_layers",
    "model.num_moe_experts",
    "model.expert_tensor_parallel_size",
    "model.moe_shared_expert_intermediate_size",
    "model.moe_router_num_groups",
    "model.moe_router_group_topk",
    "model.moe_router_topk_scaling_factor",
    "model.moe_z_loss_coeff",
    "model.moe_expert_capacity_factor",
    "model.q_lora_rank",
    "comm_overlap",
    "ddp.bucket_size",
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
