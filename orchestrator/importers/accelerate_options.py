"""Keys of accelerate's configuration: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "deepspeed_config.offload_param_device": "none",
    "dynamo_config.dynamo_mode": "default",
    "fsdp_config.fsdp_backward_prefetch": "backward_pre",
    "fsdp_config.fsdp_use_orig_params": "true",
    "megatron_lm_config.megatron_lm_context_parallel_size": "1",
    "megatron_lm_config.megatron_lm_expert_model_parallel_size": "1",
    "megatron_lm_config.megatron_lm_expert_tensor_parallel_size": "1",
    "parallelism_config.parallelism_config_cp_size": "1",
    "parallelism_config.parallelism_config_sp_size": "1",
}

ACCELERATE_OPTIONS = OptionTable(
    "accelerate",
    "accelerate of 2026-07-24 (16cb6eb8), src/accelerate/commands",
    option_groups(
        read="""
            compute_environment= deepspeed_config.deepspeed_config_file= deepspeed_config.gradient_accumulation_steps=
            deepspeed_config.offload_optimizer_device= deepspeed_config.zero_stage= distributed_type= dynamo_backend=
            dynamo_config.dynamo_backend= fp16= fp8_config= fsdp_config.fsdp_activation_checkpointing=
            fsdp_config.fsdp_reshard_after_forward= fsdp_config.fsdp_sharding_strategy= fsdp_config.fsdp_version=
            megatron_lm_config.megatron_lm_attention_backend= megatron_lm_config.megatron_lm_num_micro_batches=
            megatron_lm_config.megatron_lm_optimizer_cpu_offload= megatron_lm_config.megatron_lm_pp_degree=
            megatron_lm_config.megatron_lm_recompute_activations= megatron_lm_config.megatron_lm_recompute_granularity=
            megatron_lm_config.megatron_lm_sequence_parallelism= megatron_lm_config.megatron_lm_tp_degree=
            megatron_lm_config.megatron_lm_use_distributed_optimizer= mixed_precision= num_machines= num_processes=
            parallelism_config.parallelism_config_dp_replicate_size=
            parallelism_config.parallelism_config_dp_shard_size=
            parallelism_config.parallelism_config_tp_size= use_cpu=
            """,
        no_effect={
            reasons.START: """
                deepspeed_config.deepspeed_exclusion_filter= deepspeed_config.deepspeed_hostfile=
                deepspeed_config.deepspeed_inclusion_filter= deepspeed_config.deepspeed_multinode_launcher=
                deepspeed_config.zero3_init_flag= fsdp_config.fsdp_cpu_ram_efficient_loading=
                fsdp_config.fsdp_sync_module_states= gpu_ids= machine_rank= main_process_ip= main_process_port=
                main_training_function= mpirun_config= rdzv_backend= same_network=
                """,
            "it is only for TPUs or SageMaker, which are refused": """
                additional_args= base_job_name= command_file= commands= downcast_bf16= ec2_instance_type= iam_role_name=
                image_uri= profile= py_version= pytorch_version= region= sagemaker_inputs_file= sagemaker_metrics_file=
                tpu_env= tpu_name= tpu_use_cluster= tpu_use_sudo= tpu_vm= tpu_zone= transformers_version=
                """,
            reasons.CHECKPOINTS: """
                deepspeed_config.zero3_save_16bit_model= fsdp_config.fsdp_state_dict_type=
                megatron_lm_config.megatron_lm_no_load_optim= megatron_lm_config.megatron_lm_no_save_optim=
                """,
            "it only changes what is checked": "debug=",
            reasons.LEARNING: """
                deepspeed_config.gradient_clipping= megatron_lm_config.megatron_lm_attention_softmax_in_fp32=
                megatron_lm_config.megatron_lm_calculate_per_token_loss= megatron_lm_config.megatron_lm_eod_mask_loss=
                megatron_lm_config.megatron_lm_gradient_clipping=
                """,
            "it has an effect only together with a value that is refused": """
                deepspeed_config.offload_optimizer_nvme_path= deepspeed_config.offload_param_nvme_path=
                parallelism_config.parallelism_config_cp_backend=
                parallelism_config.parallelism_config_cp_comm_strategy=
                parallelism_config.parallelism_config_sp_attn_implementation=
                parallelism_config.parallelism_config_sp_backend= parallelism_config.parallelism_config_sp_seq_length=
                parallelism_config.parallelism_config_sp_seq_length_is_variable=
                """,
        },
        noted={
            "the model is in the training script, and trials shard each layer": """
                fsdp_config.fsdp_auto_wrap_policy= fsdp_config.fsdp_ignored_modules= fsdp_config.fsdp_min_num_params=
                fsdp_config.fsdp_transformer_layer_cls_to_wrap=
                """,
            reasons.COMMUNICATION: """
                fsdp_config.fsdp_backward_prefetch= fsdp_config.fsdp_forward_prefetch= fsdp_config.fsdp_use_orig_params=
                """,
            reasons.KERNELS: """
                dynamo_config.dynamo_mode= dynamo_config.dynamo_use_dynamic= dynamo_config.dynamo_use_fullgraph=
                dynamo_config.dynamo_use_regional_compilation=
                """,
            reasons.OPTIMIZER_STATES: """
                megatron_lm_config.megatron_lm_overlap_cpu_optimizer_d2h_h2d=
                megatron_lm_config.megatron_lm_use_precision_aware_optimizer=
                """,
            "trials train without dropout": """
                megatron_lm_config.megatron_lm_attention_dropout= megatron_lm_config.megatron_lm_hidden_dropout=
                """,
            "the model is in the training script: fill in position_embedding: rotary": """
                megatron_lm_config.megatron_lm_use_rotary_position_embeddings=
                """,
            reasons.HOST: "enable_cpu_affinity=",
        },
        refused={
            reasons.CONTEXT_PARALLELISM: """
                megatron_lm_config.megatron_lm_context_parallel_size= parallelism_config.parallelism_config_cp_size=
                """,
            reasons.ULYSSES: "parallelism_config.parallelism_config_sp_size=",
            reasons.EXPERTS: """
                deepspeed_config.deepspeed_moe_layer_cls_names=
                megatron_lm_config.megatron_lm_expert_model_parallel_size=
                megatron_lm_config.megatron_lm_expert_tensor_parallel_size=
                """,
            reasons.SHARDING: "megatron_lm_config.megatron_lm_use_custom_fsdp=",
            reasons.OFFLOADED_PARAMETERS: "deepspeed_config.offload_param_device= fsdp_config.fsdp_offload_params=",
            reasons.UNEVEN_STAGES: "megatron_lm_config.megatron_lm_decoder_last_pipeline_num_layers=",
            reasons.PARTIAL_RECOMPUTATION: """
                megatron_lm_config.megatron_lm_recompute_method= megatron_lm_config.megatron_lm_recompute_num_layers=
                """,
        },
    ),
    neutral=_NEUTRAL,
)
