"""Keys of GPT-NeoX's configuration: what each one means for an import."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.importers import reasons
from orchestrator.importers.deepspeed_options import DEEPSPEED_OPTIONS
from orchestrator.importers.option_table import option_groups

_NEUTRAL = {
    "dataset_impl": "gpt2",
    "distributed_backend": "nccl",
    "moe_num_experts": "1",
    "num_workers": "2",
    "rotary_pct": "1|1.0",
    "train_impl": "normal",
}

_GROUPS = option_groups(
    read="""
        activation= attention_config= checkpoint_activations= checkpoint_num_layers=
        expansion_factor= global_num_gpus= gradient_accumulation_steps= hidden_size= hostfile=
        intermediate_size= make_vocab_size_divisible_by= max_position_embeddings= mlp_multiple_of= model_parallel_size=
        no_weight_tying= norm= num_attention_heads= num_gpus= num_kv_heads= num_layers= num_nodes= pipe_parallel_size=
        pipe_partition_method= pos_emb= precision= rotary_emb_base= seq_length= sequence_parallel= te_layernorm_mlp=
        te_mha= tokenizer_type= train_batch_size= train_micro_batch_size_per_gpu= use_bias_in_attn_linear=
        use_bias_in_mlp= use_bias_in_norms=
        """,
    no_effect={
        reasons.LOGGING: """
            comet_experiment= comet_experiment_name= comet_others= comet_project= comet_tags= comet_workspace= git_hash=
            gradient_noise_scale_cpu_offload= gradient_noise_scale_n_batches= log_dir= log_grad_norm=
            log_grad_pct_zeros= log_interval= log_optimizer_states= log_param_norm= memory_profiling=
            memory_profiling_path= peak_theoretical_tflops= profile= profile_step_start= profile_step_stop=
            tensorboard_dir= use_comet= use_wandb= wandb_group= wandb_host= wandb_init_all_ranks= wandb_project=
            wandb_run_name= wandb_team=
            """,
        reasons.CHECKPOINTS: """
            adlr_autoresume= adlr_autoresume_interval= checkpoint_factor= checkpoint_scale=
            checkpoint_validation_with_forward_pass= config_files= extra_save_iters= finetune= iteration=
            keep_last_n_checkpoints= load= no_load_optim= no_load_rng= no_save_optim= no_save_rng=
            override_lr_scheduler= rotary_save_freqs_buffer= s3_chunk_size= s3_path= save= use_checkpoint_lr_scheduler=
            """,
        reasons.EVALUATION: """
            char_level_ppl= do_test= do_valid= eval_interval= eval_iters= eval_results_prefix= eval_tasks=
            """,
        reasons.TOKENS: """
            allow_chopped= data_impl= data_path= eod_mask_loss= merge_file= mmap_warmup= online_dataserver_ips=
            online_dataserver_ports= pack_impl= short_seq_prob= split= test_data_paths= test_data_weights=
            test_label_data_paths= train_data_paths= train_data_weights= train_label_data_paths= use_shared_fs=
            valid_data_paths= valid_data_weights= valid_label_data_paths= vocab_file= weight_by_num_documents=
            weighted_sampler_alpha=
            """,
        reasons.LEARNING: """
            apply_query_key_layer_scaling= attention_softmax_in_fp32= clip_grad= dynamic_loss_scale= hysteresis=
            layernorm_epsilon= loss_scale= loss_scale_window= lr= lr_decay_fraction= lr_decay_iters= lr_decay_style=
            min_lr= min_scale= onnx_safe= opt_pos_emb_offset= rms_norm_epsilon= scalenorm_epsilon=
            warmup= weight_decay=
            """,
        reasons.START: """
            account= comment= deepspeed= deepspeed_mpi= deepspeed_slurm= force_multi= fused_kernels_build_path=
            init_method= init_method_std= launcher= lazy_mpu_init= local_rank= master_addr= master_port= no_ssh_check=
            output_layer_init_method= rank= seed= use_cpu_initialization= user_script=
            """,
        reasons.DURATION: "do_train= exit_interval= train_epochs= train_iters=",
        "GPT-NeoX computes it from other keys": """
            batch_size= curriculum_seqlen= is_pipe_parallel= optimizer_type= padded_vocab_size= world_size=
            zero_allgather_bucket_size= zero_contiguous_gradients= zero_reduce_bucket_size= zero_reduce_scatter=
            zero_stage=
            """,
        "it has one value, or GPT-NeoX does not use it": """
            deepscale= deepscale_config= deepspeed_activation_checkpointing= output_layer_parallelism=
            """,
        "pretraining a GPT does not use it: it is for other trainings, or for inference": """
            dim_att= dpo_beta= dpo_fp32= dpo_reference_free= ffn_dim= fp32_reinforce= gmlp_attn_dim= head_size=
            kl_div_beta= kl_impl= kto_beta= kto_desirable_weight= kto_fp32= kto_undesirable_weight=
            mamba_causal_conv_fusion= mamba_inner_func_fusion= mamba_selective_fp32_params= mamba_selective_scan_fusion=
            mamba_use_bias_in_conv= mamba_use_bias_in_linears= maximum_tokens= neg_test_data_paths=
            neg_test_label_data_paths= neg_train_data_paths= neg_train_label_data_paths= neg_valid_data_paths=
            neg_valid_label_data_paths= num_samples= pos_test_data_paths= pos_test_label_data_paths=
            pos_train_data_paths= pos_train_label_data_paths= pos_valid_data_paths= pos_valid_label_data_paths=
            precompute_model_name= prompt_end= recompute= reinforce_leave_one_out= return_logits= sample_input_file=
            sample_output_file= serve_model_weights= temperature= test_reward_data_paths= text_gen_type= top_k= top_p=
            train_reward_data_paths= valid_reward_data_paths= weight_server_port= z_loss=
            """,
        reasons.BESIDE_A_REFUSED_KEY: """
            autotuning_run= base_shapes_file= coord_check= moe_expert_interval= moe_jitter_eps= moe_lbl_in_fp32=
            moe_router_type= moe_top_k= mup_attn_temp= mup_embedding_mult= mup_init_scale= mup_output_temp=
            mup_rp_embedding_mult= mup_width_scale= param_sharing_style= rpe_max_distance= rpe_num_buckets=
            save_base_shapes= sparsity_config= te_fp8_amax_compute_algo= te_fp8_amax_history_len= te_fp8_format=
            te_fp8_margin= te_fp8_wgrad=
            """,
        "GPT-NeoX does not use it": "bf16.bf16= fp16.fp16= fp16.type=",
    },
    noted={
        "attention and MLP are added in parallel; in trials they follow each other, with equal parameters": """
            gpt_j_residual= gpt_j_tied=
            """,
        reasons.ARITHMETIC: """
            attention_dropout= contiguous_checkpointing= fp16_lm_cross_entropy= hidden_dropout=
            partition_activations= rotary_pct= use_qk_layernorm=
            """,
        reasons.KERNELS: """
            bias_dropout_fusion= bias_gelu_fusion= layernorm_fusion= rmsnorm_fusion= rope_fusion=
            scaled_masked_softmax_fusion= scaled_upper_triang_masked_softmax_fusion= te_columnparallel= te_rowparallel=
            use_flashattn_swiglu=
            """,
        "it adds work to a step": "log_gradient_noise_scale= profile_backward= synchronize_each_layer=",
        reasons.COMMUNICATION: "distributed_backend= fp32_allreduce=",
        reasons.OPTIMIZER_STATES: "optimizer.type=",
        reasons.HOST: "num_workers=",
    },
    refused={
        "it chooses among a node's GPUs": "exclude= include=",
        reasons.EXPERTS: "moe_num_experts=",
        "8-bit arithmetic is no value of precision, and 8-bit optimizer states are no axis of a layout": """
            te_fp8_mha= use_bnb_optimizer=
            """,
        reasons.OFFLOADED_ACTIVATIONS: "checkpoint_in_cpu=",
        reasons.NO_MODEL_FIELD: "num_unique_layers= sliding_window_width= soft_prompt_tuning= use_mup=",
        "a search pretrains a GPT": "dataset_impl= train_impl=",
        "in a GPT-NeoX training only its own keys set parallelism, recomputation and precision": """
            bfloat16.enabled= compile.passes= pipeline.activation_checkpoint_interval= tensor_parallel.autotp_size=
            torch_autocast.dtype= torch_autocast.enabled=
            """,
    },
)
GPT_NEOX_OPTIONS = replace(
    DEEPSPEED_OPTIONS,
    trainer="GPT-NeoX",
    source="GPT-NeoX of 2026-05-20 (ea7aefd8), megatron/neox_arguments, or of DeepSpeed 0.19",
    neutral={**DEEPSPEED_OPTIONS.neutral, **_NEUTRAL},
).with_groups(_GROUPS)
"""Its own keys, and DeepSpeed's, which a configuration has beside them or in `deepspeed_extra_args`."""
