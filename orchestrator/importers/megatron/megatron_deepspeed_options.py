"""Options of Megatron-DeepSpeed's parser: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    **MEGATRON_LM_OPTIONS.neutral,
    "DDP-impl": "local",
    "ds-sequence-parallel-size": "1",
    "moe-expert-parallel-size": "1",
    "num-experts": "1",
    "remote-device": "none",
    "transformer-impl": "local",
}

MEGATRON_DEEPSPEED_OPTIONS = OptionTable(
    "Megatron-DeepSpeed",
    "Megatron-DeepSpeed of 2025-07-16 (4efb479d), megatron/arguments.py",
    MEGATRON_LM_OPTIONS.with_groups(
        option_groups(
            read="""
                checkpoint-activations checkpoint-num-layers= cpu-optimizer deepspeed deepspeed-activation-checkpointing
                deepspeed-config= no-pipeline-parallel num-key-value-heads= use-flash-attn-builder use-flash-attn-triton
                use-flash-attn-v1 use-flash-attn-v2 zero-stage=
                """,
            no_effect={
                reasons.LOGGING: """
                    log-batch-size-to-tensorboard log-optimizer-states-to-tensorboard no-log-learnig-rate-to-tensorboard
                    profile-backward profile-steps=
                    """,
                reasons.CHECKPOINTS: """
                    kill-switch-file= load-tag= no-load-lr-state reset-iteration universal-checkpoint
                    """,
                reasons.TOKENS: """
                    aml-data-download-path= data-impl= mmap-warmup repeated-dataloader return-data-index
                    train-data-exact-num-epochs= train-desc-path= train-doc-idx-path= train-idx-path=
                    train-sample-idx-path= train-shuffle-idx-path= use-dataset-only=
                    """,
                reasons.LEARNING: """
                    layernorm-epsilon= lr-decay-tokens= lr-warmup-tokens= no-query-key-layer-scaling
                    rotary-position-embeddings-theta=
                    """,
                reasons.DURATION: "train-tokens=",
                reasons.OTHER_PROGRAMS: """
                    deepscale deepscale-config= ds-inference inference pipeline-model-parallel-split-rank=
                    retriever-seq-length= retro-add-retriever retro-cyclic-train-iters= retro-encoder-attention-dropout=
                    retro-encoder-hidden-dropout= retro-encoder-layers= retro-num-neighbors= retro-num-retrieved-chunks=
                    retro-return-doc-ids retro-workdir=
                    """,
                reasons.BESIDE_A_REFUSED_OPTION: """
                    create-moe-param-group disable-moe-token-dropping disable-moe-top2-2nd-expert-sampling
                    ds-sequence-parallel-fpdt-chunk-size= ds-sequence-parallel-fpdt-offloading
                    enable-expert-tensor-parallelism expert-interval= hidden-size-teacher= kd-alpha-ce= kd-beta-ce=
                    kd-temp= load-teacher= mlp-type= moe-eval-capacity-factor= moe-loss-coeff= moe-min-capacity=
                    moe-train-capacity-factor= num-attention-heads-teacher= num-experts-switch= num-experts-teacher=
                    num-layers-teacher= tile-factor= topk= use-tutel
                    """,
            },
            noted={
                reasons.ARITHMETIC: "embedding-weights-in-fp32 memory-centric-tiled-linear",
                "Megatron-DeepSpeed has no such option": "attention-backend=",
                "trials have Megatron-DeepSpeed's own layers, of the local implementation": "transformer-impl=",
                reasons.KERNELS: "disable-mem-efficient-ln",
                reasons.COMMUNICATION: """
                    DDP-impl= contigious-checkpointing no-async-tensor-model-parallel-allreduce
                    no-contiguous-buffers-in-local-ddp no-scatter-gather-tensors-in-pipeline overlap-p2p-communication
                    scattered-embeddings split-transformers synchronize-each-layer use-pin-memory
                    zero-allgather-bucket-size= zero-contigious-gradients zero-reduce-bucket-size= zero-reduce-scatter
                    """,
                reasons.OPTIMIZER_STATES: "cpu-torch-adam ds-fused-adam",
            },
            refused={
                reasons.ULYSSES: "ds-sequence-parallel-fpdt ds-sequence-parallel-size= force-ds-sequence-parallel",
                reasons.EXPERTS: "moe-expert-parallel-size=",
                reasons.LOW_PRECISION: "fp8-e4m3 fp8-hybrid",
                reasons.PARTIAL_RECOMPUTATION: """
                    checkpoint-in-cpu distribute-checkpointed-activations partition-activations
                    """,
                "this pipeline schedule is no value of pipeline_schedule": """
                    enable-zbh1-exact-semantics enable-zbh1-pipeline
                    """,
                "parameters in host memory are no value of offload": "remote-device=",
                reasons.WHOLE_GPT: "data-efficiency-curriculum-learning kd mos random-ltd",
                reasons.UNEVEN_STAGES: "standalone-embedding-stage",
            },
        )
    ).groups,
    neutral=_NEUTRAL,
    prefix="--",
)
