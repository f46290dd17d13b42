"""Keys of Megatron-Bridge's model section: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import option_groups

MODEL_GROUPS = option_groups(
    read="""
        model.account_for_embedding_in_pipeline_split= model.account_for_loss_in_pipeline_split= model.activation_func=
        model.add_bias_linear= model.add_qkv_bias= model.attention_backend= model.attention_dropout=
        model.context_parallel_size= model.cp_comm_type= model.cpu_offloading= model.cpu_offloading_num_layers=
        model.cuda_graph_impl= model.cuda_graph_modules= model.cuda_graph_scope= model.expert_model_parallel_size=
        model.expert_tensor_parallel_size= model.ffn_hidden_size= model.gated_linear_unit= model.hidden_dropout=
        model.hidden_size= model.hierarchical_context_parallel_sizes= model.kv_channels= model.kv_lora_rank=
        model.make_vocab_size_divisible_by= model.moe_enable_deepep= model.moe_ffn_hidden_size=
        model.moe_flex_dispatcher_backend= model.moe_layer_freq= model.moe_router_topk=
        model.moe_shared_expert_intermediate_size= model.moe_token_dispatcher_type= model.mtp_num_layers=
        model.multi_latent_attention= model.normalization= model.num_attention_heads= model.num_layers=
        model.num_layers_in_first_pipeline_stage= model.num_layers_in_last_pipeline_stage= model.num_moe_experts=
        model.num_query_groups= model.overlap_moe_expert_parallel_comm= model.pipeline_model_parallel_layout=
        model.pipeline_model_parallel_size= model.position_embedding_type= model.q_lora_rank= model.qk_head_dim=
        model.qk_layernorm= model.qk_pos_emb_head_dim= model.recompute_granularity= model.recompute_method=
        model.recompute_modules= model.recompute_num_layers= model.rotary_base= model.seq_length=
        model.sequence_parallel= model.share_embeddings_and_output_weights= model.should_pad_vocab=
        model.tensor_model_parallel_size= model.tp_comm_overlap= model.transformer_impl= model.v_head_dim=
        model.virtual_pipeline_model_parallel_size= model.vocab_size=
        """,
    no_effect={
        "training a GPT does not use it: it is for other programs, or for inference": """
            model._cpu_offloading_context= model._pg_collection= model.flash_decode= model.inference_cuda_graph_scope=
            model.inference_disable_triton_nvls_kernels= model.inference_fuse_tp_communication=
            model.inference_grouped_gemm_backend= model.inference_moe_disable_fused_quant_kernels=
            model.inference_moe_token_dispatcher_type= model.inference_sampling_seed= model.mlp_chunks_for_prefill=
            model.moe_pad_experts_for_cuda_graph_inference= model.nccl_all_reduce_for_prefill=
            model.use_inference_optimized_layers=
            """,
        reasons.BESIDE_A_REFUSED_KEY: """
            model.activation_func_fp8_input_store= model.cpu_offloading_activations=
            model.cpu_offloading_double_buffering=
            model.disable_parameter_transpose_cache= model.dsa_indexer_head_dim= model.dsa_indexer_k_norm_epsilon=
            model.dsa_indexer_k_norm_fp32= model.dsa_indexer_loss_coeff= model.dsa_indexer_n_heads=
            model.dsa_indexer_rope_interleaved= model.dsa_indexer_rotate_activation= model.dsa_indexer_scoring_relu=
            model.dsa_indexer_skip_topk_offset= model.dsa_indexer_topk= model.dsa_indexer_topk_freq=
            model.dsa_indexer_use_sparse_loss= model.dsa_kernel_backend=
            model.experimental_attention_variant_loss_scale_func= model.expert_tensor_parallel_num_weight_shards=
            model.first_last_layers_bf16= model.fp4_param= model.fp4_quantizer_factory= model.fp4_recipe=
            model.fp8_amax_compute_algo= model.fp8_amax_history_len= model.fp8_interval= model.fp8_margin=
            model.fp8_output_proj= model.fp8_param= model.fp8_quantizer_factory= model.fp8_recipe= model.fp8_wgrad=
            model.gdp_cutedsl_kernel= model.gdp_num_chunk_states_to_recompute= model.gdp_num_householder=
            model.kitchen_attention_backend= model.linear_conv_kernel_dim=
            model.linear_key_head_dim= model.linear_num_key_heads= model.linear_num_value_heads=
            model.linear_value_head_dim= model.mamba_head_dim= model.mamba_num_groups= model.mamba_num_heads=
            model.mamba_state_dim= model.mamba_training_ssm_states_dtype= model.max_seqlen_per_dp_cp_rank=
            model.mhc_init_gating_factor= model.mhc_num_residual_streams= model.mhc_recompute_layer_num=
            model.mhc_sinkhorn_iterations= model.moe_router_padding_for_fp8= model.moe_router_padding_for_quantization=
            model.mrope_section= model.mtp_standalone= model.num_layers_at_end_in_bf16=
            model.num_layers_at_start_in_bf16= model.tp_only_amax_red= model.use_mamba_mem_eff_path=
            model.window_attn_skip_freq= model.yarn_beta_fast= model.yarn_beta_slow=
            model.yarn_correction_range_round_to_int= model.yarn_mscale= model.yarn_mscale_all_dim=
            model.yarn_original_max_position_embeddings= model.yarn_rotary_scaling_factor=
            """,
        reasons.LEARNING: """
            model.apply_query_key_layer_scaling= model.attention_softmax_in_fp32= model.calculate_per_token_loss=
            model.layernorm_epsilon= model.layernorm_zero_centered_gamma= model.mtp_loss_scaling_factor=
            model.mup_attn_scale_power= model.mup_base_head_dim= model.mup_base_hidden_size= model.mup_embedding_mult=
            model.mup_output_mult= model.mup_width_mult= model.no_rope_freq= model.rope_scaling=
            model.rope_scaling_factor= model.rope_type= model.rotary_interleaved= model.rotary_percent=
            model.rotary_scaling_factor= model.seq_len_interpolation_factor= model.softmax_scale= model.softmax_type=
            """,
        "mixed_precision decides it": """
            model.autocast_dtype= model.bf16= model.enable_autocast= model.fp16= model.params_dtype=
            model.pipeline_dtype=
            """,
        reasons.LOGGING: """
            model.barrier_with_L1_time= model.config_logger_dir= model.log_max_attention_logit=
            model.moe_per_layer_logging= model.timers=
            """,
        reasons.FORCED_ROUTING: """
            model.moe_enable_routing_replay= model.moe_router_force_biased= model.moe_router_force_load_balancing=
            """,
        reasons.START: """
            model.embedding_init_method= model.embedding_init_method_std= model.hf_model_id= model.hf_model_revision=
            model.inference_rng_tracker= model.init_method= model.init_method_std= model.init_model_with_meta_device=
            model.output_layer_init_method= model.perform_initialization= model.use_cpu_initialization= model.use_mup=
            model.use_te_rng_tracker=
            """,
        "Megatron-Bridge computes it from other keys": """
            model.finalize_model_grads_func= model.grad_scale_func= model.grad_sync_func= model.logit_dtype=
            model.moe_grad_scale_func= model.mtp_enabled= model.mtp_grad_scale_func= model.no_sync_func=
            model.parallel_output= model.param_sync_func= model.scatter_embedding_sequence_parallel=
            model.transformer_layer_spec=
            """,
        reasons.CHECKPOINTS: "model.hetereogenous_dist_checkpoint= model.restore_modelopt_state=",
        reasons.TOKENS: "model.test_mode=",
    },
    noted={
        reasons.NO_AUXILIARY_LOSS: """
            model.moe_aux_loss_coeff= model.moe_router_bias_update_rate= model.moe_router_enable_expert_bias=
            model.moe_router_load_balancing_type= model.moe_router_quantile_balancing_ema= model.moe_z_loss_coeff=
            """,
        reasons.ROUTING: """
            model.moe_apply_probs_on_input= model.moe_input_jitter_eps= model.moe_router_group_topk=
            model.moe_router_num_groups= model.moe_router_pre_softmax= model.moe_router_score_function=
            model.moe_router_topk_limited_devices= model.moe_router_topk_scaling_factor=
            """,
        reasons.NO_CAPACITY: """
            model.moe_expert_capacity_factor= model.moe_expert_rank_capacity_factor=
            model.moe_pad_expert_input_to_capacity= model.moe_token_drop_policy= model.moe_token_dropping=
            """,
        reasons.ARITHMETIC: """
            model.activation_func_clamp_value= model.apply_residual_connection_post_layernorm=
            model.batch_invariant_backend= model.batch_invariant_mode= model.clone_scatter_output_in_embedding=
            model.deterministic_mode= model.disable_bf16_reduced_precision_matmul= model.fp16_lm_cross_entropy=
            model.fp32_residual_connection= model.glu_linear_offset= model.moe_router_dtype= model.qk_clip=
            model.qk_clip_alpha= model.qk_clip_threshold= model.qk_l2_norm= model.use_fused_weighted_squared_relu=
            model.use_te_activation_func= model.variable_seq_lengths=
            """,
        reasons.OPTIMIZER_STATES: """
            model.activation_offload_fraction= model.cpu_offloading_retain_pinned_cpu_buffers=
            model.delta_offload_bytes_across_pp_ranks= model.fine_grained_offloading_max_inflight_offloads=
            model.min_offloaded_tensor_size= model.moe_paged_stash= model.moe_paged_stash_buffer_size_factor_cpu=
            model.moe_paged_stash_buffer_size_factor_cuda= model.moe_paged_stash_page_size=
            """,
        reasons.KERNELS: """
            model.apply_rope_fusion= model.bias_activation_fusion= model.bias_dropout_fusion=
            model.cross_entropy_fusion_impl= model.cross_entropy_loss_fusion= model.cuda_graph_retain_backward_graph=
            model.cuda_graph_use_single_mempool= model.cuda_graph_warmup_steps= model.delay_offload_until_cuda_graph=
            model.dense_grouped_gemm= model.enable_cuda_graph= model.external_cuda_graph= model.flash_attention_version=
            model.fused_residual_rmsnorm= model.fused_single_qkv_rope= model.gradient_accumulation_fusion=
            model.masked_softmax_fusion= model.memory_efficient_layer_norm= model.mlp_chunks_for_training=
            model.moe_grouped_gemm= model.moe_mlp_glu_interleave_size= model.moe_permute_fusion=
            model.moe_router_fusion= model.moe_shared_expert_glu_interleave_size= model.moe_single_grouped_bias=
            model.moe_single_grouped_weight= model.moe_use_grouped_tensor= model.persist_layer_norm=
            model.symmetric_ar_type= model.tp_comm_atomic_ag= model.tp_comm_atomic_rs= model.tp_comm_bootstrap_backend=
            model.tp_comm_bulk_dgrad= model.tp_comm_bulk_wgrad= model.tp_comm_overlap_ag=
            model.tp_comm_overlap_cfg= model.tp_comm_overlap_disable_fc1= model.tp_comm_overlap_disable_qkv=
            model.tp_comm_overlap_rs= model.tp_comm_overlap_rs_dgrad= model.tp_comm_split_ag= model.tp_comm_split_rs=
            model.use_grouped_gemm_for_dense_mlp= model.use_grouped_gemm_for_shared_expert=
            model.use_transformer_engine_full_layer_spec= model.use_transformer_engine_op_fuser=
            """,
        reasons.COMMUNICATION: """
            model.batch_p2p_comm= model.batch_p2p_sync= model.deallocate_pipeline_outputs=
            model.defer_embedding_wgrad_compute= model.delay_wgrad_compute= model.ep_overlap_early_attn_memory_release=
            model.high_priority_a2a_comm_stream= model.microbatch_group_size_per_vp_stage= model.moe_combine_bwd_dtype=
            model.moe_deepep_num_sms= model.moe_dispatch_fwd_dtype= model.moe_flex_dispatcher_num_sms=
            model.moe_hybridep_num_blocks_permute= model.moe_hybridep_num_blocks_unpermute= model.moe_hybridep_num_sms=
            model.moe_hybridep_num_sms_preprocessing= model.moe_hybridep_pad_uneven_dispatch_inputs=
            model.moe_ncclep_zero_copy= model.moe_permute_fusion_into_hybridep= model.moe_shared_expert_overlap=
            model.overlap_dispatch_backward_with_experts_wgrad= model.overlap_p2p_comm=
            model.overlap_p2p_comm_warmup_flush= model.pipeline_model_parallel_comm_backend=
            model.use_ring_exchange_p2p= model.wgrad_deferral_limit=
            """,
    },
    refused={
        reasons.NO_MODEL_FIELD: """
            model.attention_output_gate= model.enable_mhc_connections= model.experimental_attention_variant=
            model.heterogeneous_block_specs= model.is_hybrid_model= model.linear_attention_freq= model.moe_latent_size=
            model.moe_shared_expert_gate= model.mtp_detach_heads= model.mtp_hsm= model.mtp_hybrid_override_pattern=
            model.mtp_use_repeated_layer= model.use_arbitrary_attention_mask= model.use_kitchen_attention=
            model.window_size=
            """,
        reasons.CONTEXT_PARALLELISM: "model.hybrid_context_parallel=",
        reasons.OFFLOADED_MODULES: """
            model.cpu_offloading_weights= model.fine_grained_activation_offloading= model.offload_modules=
            """,
        reasons.PARTIAL_RECOMPUTATION: """
            model.distribute_saved_activations= model.num_microbatches_with_partial_activation_checkpoints=
            """,
        reasons.SHARDING: """
            model.expert_gtp_weight_remat_size= model.gtp_remat_opt_in_modules= model.gtp_weight_remat_size=
            model.tensor_parallel_num_weight_shards=
            """,
        reasons.MODULES: "model.moe_layer_recompute=",
        reasons.LOW_PRECISION: """
            model.fp4= model.fp8= model.fp8_dot_product_attention= model.fp8_multi_head_attention= model.quant_recipe=
            model.use_kitchen=
            """,
        "a model of images or sound is no GPT": """
            model.freeze_language_model= model.freeze_vision_model= model.freeze_vision_projection=
            model.use_hf_vision_model=
            """,
        "distillation trains with a second model": "model.kd_config= model.teacher=",
    },
)
MODEL_NEUTRAL = {
    "model.activation_func": "torch.nn.functional.silu|torch.nn.functional.gelu",
    "model.activation_offload_fraction": "1|1.0",
    "model.batch_invariant_backend": "te_native",
    "model.batch_p2p_comm": "true",
    "model.batch_p2p_sync": "true",
    "model.clone_scatter_output_in_embedding": "true",
    "model.cross_entropy_fusion_impl": "native",
    "model.cross_entropy_loss_fusion": "true",
    "model.cuda_graph_use_single_mempool": "true",
    "model.cuda_graph_warmup_steps": "3",
    "model.deallocate_pipeline_outputs": "true|false",
    "model.delta_offload_bytes_across_pp_ranks": "0",
    "model.expert_gtp_weight_remat_size": "1",
    "model.glu_linear_offset": "0|0.0",
    "model.gtp_weight_remat_size": "1",
    "model.masked_softmax_fusion": "true",
    "model.min_offloaded_tensor_size": "1048576",
    "model.mlp_chunks_for_training": "1",
    "model.moe_aux_loss_coeff": "0|0.0",
    "model.moe_grouped_gemm": "true|false",
    "model.moe_router_dtype": "fp32",
    "model.moe_router_load_balancing_type": "none",
    "model.moe_router_score_function": "softmax",
    "model.qk_clip_alpha": "0.5",
    "model.qk_clip_threshold": "100",
    "model.tp_comm_bootstrap_backend": "nccl",
    "model.tp_comm_bulk_dgrad": "true",
    "model.tp_comm_bulk_wgrad": "true",
    "model.tp_comm_overlap_ag": "true",
    "model.tp_comm_overlap_rs": "true",
    "model.tp_comm_split_ag": "true",
    "model.tp_comm_split_rs": "true",
    "model.wgrad_deferral_limit": "0",
}
