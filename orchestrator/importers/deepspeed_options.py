"""Keys of DeepSpeed's configuration: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "bf16.check_overflow": "true|false",
    "data_types.grad_accum_dtype": "fp32|float32",
    "managed_gradient_accumulation": "true",
    "pipeline.grad_partitioned": "false",
    "pipeline.pipe_partitioned": "false",
    "sequence_parallel_size": "1",
    "zero_optimization.allgather_partitions": "true",
    "zero_optimization.compute_grad_norm": "true",
    "zero_optimization.contiguous_gradients": "true",
    "zero_optimization.max_live_parameters": "1000000000|1000000000.0",
    "zero_optimization.max_reuse_distance": "1000000000|1000000000.0",
    "zero_optimization.memory_efficient_linear": "true",
    "zero_optimization.mics_shard_size": "-1",
    "zero_optimization.module_granularity_threshold": "0",
    "zero_optimization.offload_optimizer.cpuadam_cores_perc": "0.8",
    "zero_optimization.offload_optimizer.pin_memory": "true",
    "zero_optimization.offload_param.device": "none",
    "zero_optimization.param_persistence_threshold": "100000|100000.0",
    "zero_optimization.prefetch_bucket_size": "50000000|50000000.0",
    "zero_optimization.reduce_scatter": "true",
    "zero_optimization.stage3_max_live_parameters": "1000000000|1000000000.0",
    "zero_optimization.stage3_max_reuse_distance": "1000000000|1000000000.0",
    "zero_optimization.stage3_module_granularity_threshold": "0",
    "zero_optimization.stage3_param_persistence_threshold": "100000|100000.0",
    "zero_optimization.stage3_prefetch_bucket_size": "50000000|50000000.0",
    "zero_optimization.sub_group_size": "1000000000|1000000000.0",
    "zero_optimization.use_multi_rank_bucket_allreduce": "true",
    "zero_optimization.zero_hpz_partition_size": "1",
}

DEEPSPEED_OPTIONS = OptionTable(
    "DeepSpeed",
    "DeepSpeed 0.19, deepspeed/runtime/config.py",
    option_groups(
        read="""
            bf16.enabled= bfloat16.enabled= compile.passes= fp16.enabled= gradient_accumulation_steps= optimizer.type=
            pipeline.activation_checkpoint_interval= tensor_parallel.autotp_size= torch_autocast.dtype=
            torch_autocast.enabled= train_batch_size= train_micro_batch_size_per_gpu= zero_optimization.cpu_offload=
            zero_optimization.offload_optimizer.device= zero_optimization.offload_optimizer.ratio=
            zero_optimization.allgather_bucket_size= zero_optimization.overlap_comm=
            zero_optimization.reduce_bucket_size= zero_optimization.stage=
            """,
        no_effect={
            reasons.LOGGING: """
                activation_checkpointing.profile= comet= comms_logger= compile.debug_log= csv_monitor= dump_state=
                flops_profiler= log_level= memory_breakdown= steps_per_print= tensorboard= timers= vocabulary_size=
                wall_clock_breakdown= wandb= zero_optimization.enable_sanity_checks=
                zero_optimization.log_trace_cache_warnings=
                """,
            reasons.CHECKPOINTS: """
                checkpoint= datastates_ckpt= nebula= zero_optimization.elastic_checkpoint=
                zero_optimization.gather_16bit_weights_on_model_save= zero_optimization.load_from_fp32_weights=
                zero_optimization.pipeline_loading_checkpoint=
                zero_optimization.stage3_gather_16bit_weights_on_model_save=
                zero_optimization.stage3_gather_fp16_weights_on_model_save=
                """,
            reasons.TOKENS: "dataloader_drop_last=",
            reasons.LEARNING: """
                bf16.check_grad_overflow= bf16.check_overflow= fp16.auto_cast= fp16.consecutive_hysteresis=
                fp16.hysteresis= fp16.initial_scale_power= fp16.loss_scale= fp16.loss_scale_window= fp16.min_loss_scale=
                gradient_allreduce_op= gradient_clipping= gradient_predivide_factor= optimizer.params=
                prescale_gradients= scheduler=
                """,
            "it only changes the start of the program or what it checks": """
                pipeline.seed_layers= tensor_parallel.keep_module_on_host= zero_allow_untested_optimizer=
                zero_force_ds_cpu_optimizer= zero_optimization.ignore_unused_parameters=
                zero_optimization.override_module_apply=
                """,
            "DeepSpeed does not use it": "pipeline.partition= pipeline.stages=",
            "it only says how tensor parallelism finds the layers of a model": """
                tensor_parallel.dtype= tensor_parallel.injection_policy_tuple= tensor_parallel.kernel_inject=
                tensor_parallel.partition_config= tensor_parallel.preset_model=
                tensor_parallel.replace_with_kernel_inject= tensor_parallel.tensor_parallel= tensor_parallel.tp=
                """,
            reasons.BESIDE_A_REFUSED_KEY: """
                aio= compile.double_buffer= compile.free_activation_threshold= compile.offload_activation_pin_memory=
                seq_parallel_communication_data_type= use_data_before_expert_parallelism=
                zero_optimization.mics_hierarchical_params_gather= zero_optimization.offload_optimizer.buffer_count=
                zero_optimization.offload_optimizer.fast_init= zero_optimization.offload_optimizer.nvme_path=
                zero_optimization.offload_optimizer.pipeline_read= zero_optimization.offload_optimizer.pipeline_write=
                zero_optimization.offload_param.buffer_count= zero_optimization.offload_param.buffer_size=
                zero_optimization.offload_param.max_in_cpu= zero_optimization.offload_param.nvme_path=
                zero_optimization.offload_param.pin_memory=
                """,
        },
        noted={
            "it is a search of DeepSpeed's own, and the values of this file are taken as its layout": "autotuning=",
            "it is for the generation of text between steps, which is not measured": "hybrid_engine=",
            reasons.COMMUNICATION: """
                allgather_size= communication_data_type= disable_allgather= pipeline.grad_partitioned=
                pipeline.pipe_partitioned= sparse_gradients= tensor_parallel.tp_overlap_comm=
                zero_optimization.allgather_partitions= zero_optimization.allgather_sequential=
                zero_optimization.contiguous_gradients= zero_optimization.leaf_module= zero_optimization.legacy_stage1=
                zero_optimization.max_live_parameters= zero_optimization.max_reuse_distance=
                zero_optimization.model_persistence_threshold= zero_optimization.module_granularity_threshold=
                zero_optimization.param_persistence_threshold= zero_optimization.prefetch_bucket_size=
                zero_optimization.reduce_scatter= zero_optimization.round_robin_gradients=
                zero_optimization.stage3_allgather_sequential= zero_optimization.stage3_max_live_parameters=
                zero_optimization.stage3_max_reuse_distance= zero_optimization.stage3_model_persistence_threshold=
                zero_optimization.stage3_module_granularity_threshold=
                zero_optimization.stage3_param_persistence_threshold= zero_optimization.stage3_prefetch_bucket_size=
                zero_optimization.stage3_use_all_reduce_for_fetch_params= zero_optimization.sub_group_size=
                zero_optimization.use_all_reduce_for_fetch_params= zero_optimization.use_multi_rank_bucket_allreduce=
                """,
            reasons.KERNELS: """
                compile.autoep_non_moe= compile.deepcompile= compile.free_activation= compile.keep_all_input_tensors=
                compile.keep_int_input_tensors= compile.symmetric_memory= compile.sync_after_allgather=
                compile.sync_after_reduce= compile.sync_before_allgather= compile.sync_before_reduce= graph_harvesting=
                optimizer.legacy_fusion= pipeline.use_reentrant= tensor_parallel.vocab_parallel_ce_backend=
                tensor_parallel.vocab_parallel_lm_head= zero_optimization.compute_grad_norm=
                zero_optimization.memory_efficient_linear= zero_optimization.parameter_alignment=
                """,
            reasons.OPTIMIZER_STATES: """
                bf16.immediate_grad_update= data_types.buffer_dtype= data_types.keep_in_fp32_modules=
                data_types.param_dtype= torch_autocast.lower_precision_safe_modules=
                zero_optimization.cpu_offload_use_pin_memory= zero_optimization.offload_optimizer.cpuadam_cores_perc=
                zero_optimization.offload_optimizer.pin_memory= zero_optimization.offload_optimizer.super_offload=
                zero_optimization.save_muon_momentum_buffer_in_memory=
                """,
            "it changes how recomputed layers keep their inputs, where the program recomputes any": """
                activation_checkpointing.contiguous_memory_optimization= activation_checkpointing.number_checkpoints=
                activation_checkpointing.partition_activations=
                activation_checkpointing.synchronize_checkpoint_boundary=
                """,
            reasons.HOST: "disable_python_gc=",
            "without it the program decides when the optimizer steps; a trial counts micro-batches": """
                managed_gradient_accumulation=
                """,
        },
        refused={
            reasons.ULYSSES: "sequence_parallel_size=",
            reasons.OTHER_MOMENTS: """
                bf16.bf16_master_weights_and_grads= bf16.bf16_optimizer_states= fp16.fp16_master_weights_and_grads=
                """,
            "in bf16 trials with DeepSpeed sum gradients in fp32": "data_types.grad_accum_dtype=",
            reasons.EXPERTS: "expert_parallel=",
            reasons.SHARDING: "zero_optimization.mics_shard_size= zero_optimization.zero_hpz_partition_size=",
            "quantized weights and gradients are no axis of a layout": """
                zero_optimization.zero_quantized_gradients= zero_optimization.zero_quantized_nontrainable_weights=
                zero_optimization.zero_quantized_weights= zero_optimization.zeropp_loco_param=
                """,
            reasons.OFFLOADED_PARAMETERS: """
                compile.offload_parameters= zero_optimization.cpu_offload_param= zero_optimization.offload_param.device=
                """,
            reasons.OFFLOADED_ACTIVATIONS: "activation_checkpointing.cpu_checkpointing= compile.offload_activation=",
            "an optimizer that is in host memory for a part of the step is no value of offload": """
                compile.offload_opt_states= zero_optimization.zenflow=
                """,
            reasons.NO_MODEL_FIELD: """
                compression_training= eigenvalue= progressive_layer_drop= quantize_training= sparse_attention=
                weight_quantization=
                """,
            "sequences or samples of changing length are no axis of a search": "curriculum_learning= data_efficiency=",
            reasons.FIXED_BATCH: "elasticity=",
            "precision is fp32, bf16 or fp16; Apex AMP is none of them": "amp=",
        },
    ),
    neutral=_NEUTRAL,
)
