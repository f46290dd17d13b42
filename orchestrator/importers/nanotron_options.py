"""Keys of nanotron's configuration: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "model.ddp_bucket_cap_mb": "25",
    "model.model_config._fused_rms_norm": "true",
    "model.model_config._fused_rotary_emb": "true",
    "model.model_config._use_qkv_packed": "true",
    "model.model_config.hidden_act": "silu",
    "optimizer.accumulate_grad_in_fp32": "true",
    "optimizer.optimizer_factory.name": "adamw",
    "optimizer.optimizer_factory.torch_adam_is_fused": "true",
    "parallelism.context_parallel_size": "1",
    "parallelism.expert_parallel_size": "1",
    "parallelism.tp_recompute_allgather": "true",
}

NANOTRON_OPTIONS = OptionTable(
    "nanotron",
    "nanotron of 2026-04-07 (2411b022), src/nanotron/config",
    option_groups(
        read="""
            data_stages= model.dtype= model.make_vocab_size_divisible_by= model.model_config._attn_implementation=
            model.model_config.attention_bias= model.model_config.hidden_size= model.model_config.intermediate_size=
            model.model_config.num_attention_heads= model.model_config.num_hidden_layers=
            model.model_config.num_key_value_heads= model.model_config.rope_theta=
            model.model_config.tie_word_embeddings=
            model.model_config.vocab_size= optimizer.zero_stage= parallelism.dp= parallelism.pp= parallelism.pp_engine=
            parallelism.recompute_layer= parallelism.tp= parallelism.tp_mode= tokens.batch_accumulation_per_replica=
            tokens.micro_batch_size= tokens.sequence_length=
            """,
        no_effect={
            reasons.LOGGING: """
                general.benchmark_csv_path= general.project= general.run= logging.iteration_step_info_interval=
                logging.log_level= logging.log_level_replica= metrics_logging.log_detail_interval=
                metrics_logging.log_level= model.model_config.log_attn_probs= profiler=
                """,
            reasons.CHECKPOINTS: """
                checkpoints.checkpoint_interval= checkpoints.checkpoints_path=
                checkpoints.checkpoints_path_is_shared_file_system= checkpoints.load_lr_scheduler=
                checkpoints.load_optimizer= checkpoints.resume_checkpoint_path= checkpoints.save_final_state=
                checkpoints.save_initial_state= general.consumed_train_samples= general.step= s3_upload=
                """,
            reasons.EVALUATION: """
                lighteval= tokens.limit_test_batches= tokens.limit_val_batches= tokens.val_check_interval=
                """,
            reasons.TOKENS: """
                model.model_config.bos_token_id= model.model_config.eos_token_id= model.model_config.pad_token_id=
                tokenizer.tokenizer_max_length= tokenizer.tokenizer_name_or_path= tokenizer.tokenizer_revision=
                """,
            reasons.LEARNING: """
                model.model_config.rms_norm_eps= model.model_config.rope_interleaved= model.model_config.rope_scaling=
                model.model_config.rope_seq_len_interpolation_factor=
                model.model_config.z_loss_coefficient= optimizer.clip_grad=
                optimizer.learning_rate_scheduler.learning_rate=
                optimizer.learning_rate_scheduler.lr_decay_starting_step=
                optimizer.learning_rate_scheduler.lr_decay_steps= optimizer.learning_rate_scheduler.lr_decay_style=
                optimizer.learning_rate_scheduler.lr_warmup_steps= optimizer.learning_rate_scheduler.lr_warmup_style=
                optimizer.learning_rate_scheduler.min_decay_lr= optimizer.optimizer_factory.adam_beta1=
                optimizer.optimizer_factory.adam_beta2= optimizer.optimizer_factory.adam_eps= optimizer.weight_decay=
                optimizer.weight_decay_exclude_named_params=
                """,
            reasons.START: """
                general.ignore_sanity_checks= general.seed= model.init_method.path= model.init_method.scaling_method=
                model.init_method.std= model.init_method.use_mup= model.model_config.initializer_range=
                """,
            reasons.DURATION: "tokens.train_steps=",
            "it only bounds the positions of rotary embeddings": "model.model_config.max_position_embeddings=",
            "nanotron's training does not use it": """
                model.model_config.is_llama_config= model.model_config.is_qwen2_config=
                model.model_config.pretraining_tp= model.model_config.use_cache=
                """,
            reasons.BESIDE_A_REFUSED_KEY: "model.model_config.ring_attn_heads_k_stride=",
        },
        noted={
            reasons.ARITHMETIC: """
                model.model_config._use_doc_masking= model.model_config.hidden_act= model.model_config.z_loss_enabled=
                parallelism.tp_recompute_allgather=
                """,
            reasons.KERNELS: """
                model.model_config._fused_rms_norm= model.model_config._fused_rotary_emb=
                model.model_config._use_qkv_packed= optimizer.optimizer_factory.torch_adam_is_fused=
                """,
            reasons.COMMUNICATION: "model.ddp_bucket_cap_mb= parallelism.tp_linear_async_communication=",
            reasons.OPTIMIZER_STATES: "optimizer.accumulate_grad_in_fp32= optimizer.optimizer_factory.name=",
        },
        refused={
            reasons.CONTEXT_PARALLELISM: "parallelism.context_parallel_size=",
            reasons.EXPERTS: """
                model.model_config.is_llamoe_config= model.model_config.moe_config= model.model_config.moe_num_experts=
                parallelism.expert_parallel_size=
                """,
            reasons.NO_MODEL_FIELD: """
                model.model_config.flex_attention_mask= model.model_config.is_mamba_config=
                model.model_config.no_rope_layer= model.model_config.sliding_window_size=
                """,
            "StarCoder2's layers are not read": """
                model.model_config.activation_function= model.model_config.attention_softmax_in_fp32=
                model.model_config.attn_pdrop= model.model_config.embd_pdrop= model.model_config.global_attn_layers=
                model.model_config.grouped_query= model.model_config.is_starcoder2_config=
                model.model_config.layer_norm_epsilon= model.model_config.multi_query= model.model_config.num_kv_heads=
                model.model_config.resid_pdrop= model.model_config.scale_attention_softmax_in_fp32=
                model.model_config.scale_attn_weights= model.model_config.use_position_embeddings=
                model.model_config.use_rotary_embeddings=
                """,
        },
    ),
    neutral=_NEUTRAL,
)
