"""Options of torchtitan's Trainer.Config: what each one means for an import.

`model_spec.*` are no options: they are arguments of the function that a module builds its llama3 with, or what they are
in a saved configuration; `model_spec.float8.*` and `mxfp8.*` are those of its converter. `activation_checkpoint` is the
name of the policy.
"""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "activation_checkpoint.determinism_check": "default",
    "activation_checkpoint.force_recompute_mm_shapes_by_fqns": "['moe.router.gate']|moe.router.gate",
    "comm.mode": "default",
    "compile.backend": "inductor",
    "dataloader.num_workers": "0",
    "model_spec.tp_gemm_backend": "default",
    "optimizer.implementation": "fused",
    "parallelism.context_parallel_load_balancer": "headtail",
    "parallelism.spmd_backend": "partial_dtensor|spmd_types",
    "training.gc_freq": "50|10",
    "training.mixed_precision_reduce": "float32",
}

TORCHTITAN_OPTIONS = OptionTable(
    "torchtitan",
    "torchtitan 0.3.0",
    option_groups(
        read="""
            activation_checkpoint= activation_checkpoint.layers= compile.components= compile.enable
            compile.enable_async_tensor_parallel loss.num_chunks= model_spec.attn_backend= model_spec.dim=
            model_spec.enable_weight_tying= model_spec.float8.emulate model_spec.float8.filter_fqns=
            model_spec.float8.recipe_name= model_spec.head_dim= model_spec.hidden_dim= model_spec.n_heads=
            model_spec.n_kv_heads= model_spec.n_layers= model_spec.name= model_spec.rope_theta= model_spec.vocab_size=
            model_spec.expert_hidden_dim= model_spec.expert_layer_every= model_spec.experts_per_token=
            model_spec.mxfp8.fqns= model_spec.num_dense_layers= model_spec.num_experts= model_spec.qk_norm
            model_spec.shared_expert_hidden_dim= optimizer.param_groups=
            parallelism.context_parallel_degree=
            parallelism.data_parallel_replicate_degree= parallelism.data_parallel_shard_degree=
            parallelism.enable_sequence_parallel parallelism.expert_parallel_degree=
            parallelism.fsdp_reshard_after_forward=
            parallelism.module_fqns_per_model_part= parallelism.pipeline_parallel_degree=
            parallelism.pipeline_parallel_first_stage_less_layers= parallelism.pipeline_parallel_last_stage_less_layers=
            parallelism.pipeline_parallel_layers_per_stage= parallelism.pipeline_parallel_microbatch_size=
            parallelism.pipeline_parallel_schedule= parallelism.tensor_parallel_degree= training.disable_cuda_graphs
            training.dtype= training.global_batch_size= training.local_batch_size= training.mixed_precision_param=
            training.seq_len=
            """,
        no_effect={
            reasons.LOGGING: """
                comm.save_traces_file_prefix= comm.save_traces_folder= comm.trace_buf_size=
                debug.enable_structured_logging debug.print_config debug.save_config_file= dump_folder=
                metrics.disable_color_printing metrics.enable_tensorboard metrics.enable_wandb metrics.log_freq=
                metrics.save_for_all_ranks metrics.save_tb_folder= profiler.enable_memory_snapshot
                profiler.enable_profiling profiler.memory_snapshot_freq= profiler.memory_snapshot_max_entries=
                profiler.profile_freq= profiler.profiler_active= profiler.profiler_repeat= profiler.profiler_skip_first=
                profiler.profiler_skip_first_wait= profiler.profiler_warmup= profiler.save_memory_snapshot_folder=
                profiler.save_traces_folder= profiler.trace_post_processor=
                """,
            reasons.CHECKPOINTS: """
                checkpoint.async_mode= checkpoint.create_seed_checkpoint checkpoint.enable
                checkpoint.enable_first_step_checkpoint checkpoint.exclude_from_loading= checkpoint.export_dtype=
                checkpoint.folder= checkpoint.initial_load_in_hf checkpoint.initial_load_in_hf_quantized
                checkpoint.initial_load_model_only checkpoint.initial_load_path= checkpoint.interval=
                checkpoint.keep_latest_k= checkpoint.last_save_in_hf checkpoint.last_save_model_only
                checkpoint.load_only checkpoint.load_step=
                """,
            reasons.EVALUATION: """
                validator.dataloader.dataset= validator.dataloader.dataset_path= validator.dataloader.infinite
                validator.dataloader.num_workers= validator.dataloader.persistent_workers
                validator.dataloader.pin_memory validator.dataloader.prefetch_factor= validator.enable validator.freq=
                validator.steps=
                """,
            reasons.TOKENS: """
                dataloader.dataset= dataloader.dataset_path= dataloader.infinite dataloader.load_dataset_kwargs=
                dataloader.sample_processor= hf_assets_path= tokenizer=
                """,
            reasons.LEARNING: """
                lr_scheduler.decay_ratio= lr_scheduler.decay_type= lr_scheduler.min_lr_factor=
                lr_scheduler.total_steps= lr_scheduler.warmup_steps= training.max_norm=
                """,
            reasons.FORCED_ROUTING: "debug.moe_force_load_balance",
            reasons.START: "debug.seed=",
            reasons.DURATION: "training.steps=",
            reasons.FAILURES: "comm.init_timeout_seconds= comm.train_timeout_seconds=",
            reasons.BESIDE_A_REFUSED_OPTION: """
                activation_checkpoint.memory_budget= activation_checkpoint.visualize_memory_budget_pareto
                parallelism.context_parallel_ptrr_mask_key=
                """,
            "a trial's forward pass has no randomness": "activation_checkpoint.preserve_rng_state",
            "compile.enable decides it": """
                model_spec.float8.model_compile_enabled model_spec.mxfp8.model_compile_enabled
                """,
            "the model's vocabulary decides it": "loss.global_vocab_size= loss.loss_fn.global_vocab_size=",
        },
        noted={
            reasons.KERNELS: """
                compile.backend= debug.batch_invariant debug.deterministic debug.deterministic_warn_only
                """,
            reasons.COMMUNICATION: """
                model_spec.tp_gemm_backend= parallelism.enable_fsdp_symm_mem parallelism.spmd_backend=
                """,
            reasons.OPTIMIZER_STATES: """
                optimizer.implementation= optimizer.optimizer_factory_kwargs_by_name= training.mixed_precision_reduce=
                """,
            reasons.HOST: """
                activation_checkpoint.debug activation_checkpoint.determinism_check= dataloader.num_workers=
                dataloader.persistent_workers dataloader.pin_memory dataloader.prefetch_factor= debug.detect_anomaly
                debug.spmd_typechecking training.gc_debug training.gc_freq=
                """,
            "it chooses other operations to recompute": "activation_checkpoint.force_recompute_mm_shapes_by_fqns=",
            "it replaces parts of the model or of the trainer": "override.imports=",
        },
        refused={
            "context-parallel ranks have a chunk of each half": "parallelism.context_parallel_load_balancer=",
            reasons.OFFLOADED_PARAMETERS: "training.enable_cpu_offload",
            "of torchtitan's converters a search has one of linear layers, for 8 bits": "model_spec.converters=",
            "the order of a pipeline's work is one of pipeline_schedule": "parallelism.pipeline_parallel_schedule_csv=",
            "trials communicate by torch's own backends": "comm.mode=",
        },
    ),
    neutral=_NEUTRAL,
)
