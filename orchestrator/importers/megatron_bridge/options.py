"""Keys of Megatron-Bridge's ConfigContainer: what each one means for an import.

Those of Megatron-LM's core by its version of 2026-08-22 (d98e8a64). Sections without effect are handled as a whole.
"""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.megatron_bridge.model_options import MODEL_GROUPS, MODEL_NEUTRAL
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "comm_overlap.tp_comm_bootstrap_backend": "nccl",
    "dataset.create_attention_mask": "true|false",
    "ddp.gradient_reduce_div_fusion": "true",
    "ddp.megatron_fsdp_main_params_dtype": "torch.float32|fp32",
    "ddp.megatron_fsdp_version": "1",
    "dist.align_grad_reduce": "true",
    "dist.distributed_backend": "nccl",
    "optimizer.exp_avg_dtype": "torch.float32|fp32",
    "optimizer.exp_avg_sq_dtype": "torch.float32|fp32",
    "optimizer.main_grads_dtype": "torch.float32|fp32",
    "optimizer.main_params_dtype": "torch.float32|fp32",
    "optimizer.optimizer": "adam",
    "optimizer.pin_cpu_grads": "true",
    "optimizer.pin_cpu_params": "true",
    "optimizer.store_param_remainders": "true",
    "train.empty_unused_memory_level": "0",
    "train.manual_gc_interval": "0",
}
_GROUPS = option_groups(
    read="""
        comm_overlap.bucket_size= comm_overlap.overlap_grad_reduce= comm_overlap.overlap_moe_expert_parallel_comm=
        comm_overlap.tp_comm_overlap= dataset.seq_length= dataset.sequence_length= ddp.bucket_size=
        ddp.data_parallel_sharding_strategy= ddp.num_distributed_optimizer_instances= ddp.overlap_grad_reduce=
        ddp.use_distributed_optimizer= ddp.use_megatron_fsdp= dist.use_megatron_fsdp= dist.use_tp_pp_dp_mapping=
        mixed_precision= optimizer.optimizer_cpu_offload= optimizer.optimizer_offload_fraction=
        optimizer.use_distributed_optimizer= train.global_batch_size= train.micro_batch_size=
        """,
    no_effect={
        reasons.BESIDE_A_REFUSED_KEY: """
            dataset.context_parallel_size= dataset.hybrid_context_parallel= ddp.fp4_param_gather= ddp.fp8_param_gather=
            ddp.fsdp_all_gather_in_start_param_sync= ddp.keep_fp8_transpose_cache= ddp.megatron_fsdp_cuda_graph_mode=
            ddp.outer_dp_sharding_strategy= ddp.reuse_grad_buf_for_mxfp8_param_ag= optimizer.fp8_recipe=
            optimizer.reuse_grad_buf_for_mxfp8_param_ag=
            """,
        reasons.LEARNING: """
            ddp.check_for_large_grads= ddp.check_for_nan_in_grad= optimizer.adam_beta1= optimizer.adam_beta2=
            optimizer.adam_eps= optimizer.adaptive_muon_beta2= optimizer.adaptive_muon_eps=
            optimizer.adaptive_muon_moment2_method= optimizer.apply_wd_to_qk_layernorm= optimizer.clip_grad=
            optimizer.decoupled_lr= optimizer.decoupled_min_lr= optimizer.decoupled_weight_decay=
            optimizer.grad_norm_skip_threshold= optimizer.hysteresis= optimizer.initial_loss_scale=
            optimizer.lion_beta1= optimizer.lion_beta2= optimizer.loss_scale= optimizer.loss_scale_window= optimizer.lr=
            optimizer.min_loss_scale= optimizer.min_lr= optimizer.muon_coefficient_type=
            optimizer.muon_extra_scale_factor= optimizer.muon_fp32_matmul_prec= optimizer.muon_momentum=
            optimizer.muon_nesterov= optimizer.muon_num_ns_steps= optimizer.muon_scalar_optimizer=
            optimizer.muon_scale_mode= optimizer.muon_split_qkv= optimizer.muon_tp_mode= optimizer.muon_use_syrk=
            optimizer.sgd_momentum= optimizer.soap_shampoo_beta= optimizer.soap_use_kl_shampoo= optimizer.weight_decay=
            optimizer_config_override_provider= scheduler= train.check_optimizer_step_success=
            train.skip_sync_grad_norm_across_mp=
            """,
        "mixed_precision decides it": """
            ddp.grad_reduce_in_fp32= optimizer.bf16= optimizer.fp16= optimizer.params_dtype=
            """,
        reasons.LOGGING: """
            dist.flight_recorder_dump_on_timeout= dist.flight_recorder_dump_path=
            dist.flight_recorder_extra_dump_on_exec= dist.flight_recorder_include_only_active=
            dist.flight_recorder_include_stack_trace= dist.flight_recorder_trace_buffer_size= logger= nvrx_straggler=
            optimizer.barrier_with_L1_time= optimizer.config_logger_dir= optimizer.log_num_zeros_in_grad=
            optimizer.timers= profiling= straggler= tensor_inspect=
            """,
        reasons.START: """
            dist.distributed_timeout_minutes= dist.distributed_timeout_seconds_after_init=
            dist.enable_megatron_core_experimental= dist.external_gpu_device_mapping= dist.lazy_mpu_init=
            dist.local_rank= dist.use_decentralized_pg= dist.use_gloo_process_groups= rng=
            """,
        "Megatron-Bridge computes it from other keys": """
            comm_overlap.data_parallel_size= dataset.data_parallel_size= dataset.sequence_parallel_size=
            train._train_iters_from_num_epochs=
            """,
        reasons.CHECKPOINTS: "checkpoint=",
        reasons.TOKENS: """
            dataset.add_extra_token_to_sequence= dataset.allow_ambiguous_pad_tokens= dataset.blend=
            dataset.blend_per_split= dataset.data_path= dataset.data_sharding= dataset.dataloader_type=
            dataset.dataset_kwargs= dataset.dataset_name= dataset.dataset_root= dataset.defer_npy_index_mmap=
            dataset.do_test= dataset.do_validation= dataset.drop_last= dataset.eod_mask_loss= dataset.fast_cache_load=
            dataset.fim_extra_tokens= dataset.fim_fragment_rate= dataset.fim_no_prefix= dataset.fim_rate=
            dataset.fim_split_sample= dataset.fim_spm_rate= dataset.mid_level_dataset_surplus= dataset.mmap_bin_files=
            dataset.mock= dataset.num_dataset_builder_threads= dataset.object_storage_cache_path= dataset.path_to_cache=
            dataset.per_dataset_sequences_path= dataset.persistent_workers= dataset.pin_memory= dataset.random_seed=
            dataset.sequences_per_dataset= dataset.source= dataset.split= dataset.split_matrix=
            dataset.token_dtype_code= dataset.tokenizer= dataset.trust_remote_code= tokenizer= train.iterations_to_skip=
            """,
        reasons.FAILURES: """
            ft= inprocess_restart= rerun_state_machine= train.check_weight_hash_across_dp_replicas_interval=
            train.gpu_sniff_test_interval=
            """,
        reasons.EVALUATION: """
            dataset.drop_last_partial_validation_sequence= dataset.full_validation= dataset.multiple_validation_sets=
            dataset.varlen_sbhd_validation= dist.eval_context_parallel_size= train.eval_interval= train.eval_iters=
            train.manual_gc_eval= validation=
            """,
        reasons.DURATION: """
            train.exit_duration_in_mins= train.exit_interval= train.exit_signal= train.exit_signal_handler=
            train.exit_signal_handler_for_dataloader= train.exit_signal_handler_for_training= train.num_epochs=
            train.train_iters= train.train_samples=
            """,
    },
    noted={
        reasons.ARITHMETIC: """
            dataset.sft_mock_dataset_config_json= dataset.varlen_mock_dataset_config_json=
            """,
        reasons.OPTIMIZER_STATES: """
            ddp.megatron_fsdp_grad_comm_dtype= ddp.megatron_fsdp_main_grads_dtype= ddp.megatron_fsdp_main_params_dtype=
            ddp.megatron_fsdp_use_decoupled_grad= ddp.param_name_patterns_for_fp32_local_accumulation=
            ddp.reduce_scatter_with_fp32_accumulation=
            optimizer.main_grads_dtype= optimizer.main_params_dtype= optimizer.optimizer=
            optimizer.overlap_cpu_optimizer_d2h_h2d= optimizer.pin_cpu_grads= optimizer.pin_cpu_params=
            optimizer.store_param_remainders= optimizer.use_precision_aware_optimizer=
            optimizer.use_torch_optimizer_for_cpu_offload= train.empty_unused_memory_level=
            """,
        reasons.KERNELS: """
            comm_overlap.tp_comm_bootstrap_backend= comm_overlap.tp_comm_overlap_cfg= dist.disable_jit_fuser=
            optimizer.optimizer_cuda_graph=
            """,
        reasons.COMMUNICATION: """
            comm_overlap.align_param_gather= comm_overlap.batch_p2p_comm= comm_overlap.defer_embedding_wgrad_compute=
            comm_overlap.delay_wgrad_compute= comm_overlap.overlap_p2p_comm= comm_overlap.overlap_param_gather=
            comm_overlap.overlap_param_gather_with_optimizer_step= comm_overlap.wgrad_deferral_limit=
            ddp.align_param_gather= ddp.average_in_collective= ddp.delay_wgrad_compute=
            ddp.disable_symmetric_registration= ddp.fsdp_db_use_persist_buf_on_alloc_fail= ddp.fsdp_double_buffer=
            ddp.fsdp_manual_registration= ddp.gradient_reduce_div_fusion=
            ddp.megatron_fsdp_enable_fine_grained_param_gather= ddp.megatron_fsdp_max_pool_double_buffer=
            ddp.megatron_fsdp_version= ddp.nccl_ub= ddp.num_buckets= ddp.overlap_param_gather=
            ddp.pad_buckets_for_high_nccl_busbw= ddp.suggested_communication_unit_size= dist.align_grad_reduce=
            dist.distributed_backend= dist.high_priority_stream_groups= dist.nccl_communicator_config_path=
            dist.sharp_enabled_group= dist.use_sharp= optimizer.overlap_param_gather=
            optimizer.overlap_param_gather_with_optimizer_step= train.train_sync_interval=
            """,
        reasons.HOST: """
            dataset.create_attention_mask= dataset.num_workers= train.manual_gc= train.manual_gc_interval=
            """,
        reasons.DOCUMENTS: """
            dataset.inter_document_masking= dataset.reset_attention_mask= dataset.reset_position_ids=
            """,
        "the environment of a trial is that of its launcher": "env_vars=",
        "a sequence holds several texts, which changes the work of attention": """
            dataset.enable_in_batch_packing= dataset.enable_offline_packing= dataset.offline_packing_specs=
            dataset.packed_sequence_specs=
            """,
    },
    refused={
        reasons.NO_MODEL_FIELD: "train.skip_train=",
        reasons.OTHER_MOMENTS: "optimizer.exp_avg_dtype= optimizer.exp_avg_sq_dtype=",
        reasons.SHARDING: """
            ddp.use_custom_fsdp= dist.use_torch_fsdp2= optimizer.use_layer_wise_distributed_optimizer=
            """,
        reasons.FIXED_BATCH: """
            train.decrease_batch_size_if_needed= train.rampup_batch_size= train.step_batch_size_schedule=
            """,
        "a search trains all parameters of a model": "peft=",
    },
)

MEGATRON_BRIDGE_OPTIONS = OptionTable(
    "Megatron-Bridge",
    "Megatron-Bridge of 2026-08-22 (067f987d)",
    (*MODEL_GROUPS, *_GROUPS),
    neutral={**MODEL_NEUTRAL, **_NEUTRAL},
)
