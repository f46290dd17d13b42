"""Options of Megatron-DeepSpeed's parser: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import OptionTable, option_groups

_OF_MEGATRON_LM = """
    accumulate-allreduce-grads-in-fp32 adam-beta1 adam-beta2 adam-eps adlr-autoresume adlr-autoresume-interval
    apply-layernorm-1p apply-residual-connection-post-layernorm attention-dropout attention-softmax-in-fp32 batch-size
    bert-embedder-type bert-load bert-no-binary-head bf16 biencoder-projection-dim biencoder-shared-query-context-model
    block-data-path classes-fraction clip-grad data-cache-path data-parallel-random-init data-path
    data-per-class-fraction dataloader-type decoder-num-layers decoder-seq-length dino-bottleneck-size
    dino-freeze-last-layer dino-head-hidden-size dino-local-crops-number dino-local-img-size dino-norm-last-layer
    dino-teacher-temp dino-warmup-teacher-temp dino-warmup-teacher-temp-epochs disable-bias-linear
    distribute-saved-activations distributed-backend distributed-timeout-minutes embedding-path
    empty-unused-memory-level encoder-num-layers encoder-seq-length end-weight-decay eod-mask-loss eval-interval
    eval-iters evidence-data-path exit-duration-in-mins exit-interval exit-on-missing-checkpoint exit-signal-handler
    ffn-hidden-size finetune fp16 fp16-lm-cross-entropy fp32-residual-connection fp8-amax-compute-algo
    fp8-amax-history-len fp8-interval fp8-margin global-batch-size head-lr-mult help hidden-dropout hidden-size
    hysteresis ict-head-size ict-load img-h img-w indexer-batch-size indexer-log-interval
    inference-batch-times-seqlen-threshold init-method-std init-method-xavier-uniform initial-loss-scale iter-per-epoch
    kv-channels load local-rank log-interval log-memory-to-tensorboard log-num-zeros-in-grad log-params-norm
    log-timers-to-tensorboard log-validation-ppl-to-tensorboard log-world-size-to-tensorboard loss-scale
    loss-scale-window lr lr-decay-iters lr-decay-samples lr-decay-style lr-warmup-fraction lr-warmup-iters
    lr-warmup-samples make-vocab-size-divisible-by mask-factor mask-prob mask-type max-position-embeddings
    max-tokens-to-oom merge-file micro-batch-size min-loss-scale min-lr model-parallel-size
    no-barrier-with-level-1-timing no-bias-dropout-fusion no-bias-gelu-fusion no-data-sharding no-fp8-wgrad
    no-gradient-accumulation-fusion no-initialization no-load-optim no-load-rng no-log-loss-scale-to-tensorboard
    no-masked-softmax-fusion no-persist-layer-norm no-position-embedding no-save-optim no-save-rng normalization
    num-attention-heads num-channels num-classes num-experts num-layers num-layers-per-virtual-pipeline-stage
    num-workers onnx-safe openai-gelu optimizer output-bert-embeddings override-opt-param-scheduler patch-dim
    pipeline-model-parallel-size profile-ranks query-in-block-prob rampup-batch-size recompute-activations
    recompute-granularity recompute-method recompute-num-layers reset-attention-mask reset-position-ids
    retriever-report-topk-accuracies retriever-score-scaling rotary-percent sample-rate save save-interval seed
    seq-length sequence-parallel sgd-momentum short-seq-prob skip-train split squared-relu start-weight-decay swiglu
    swin-backbone-type tensor-model-parallel-size tensorboard-dir tensorboard-log-interval tensorboard-queue-size
    test-data-path timing-log-level timing-log-option titles-data-path tokenizer-model tokenizer-type train-data-path
    train-iters train-samples trust-remote-code untie-embeddings-and-output-weights use-checkpoint-args
    use-checkpoint-opt-param-scheduler use-cpu-initialization use-distributed-optimizer use-one-sent-docs
    use-ring-exchange-p2p use-rotary-position-embeddings valid-data-path vision-backbone-type vision-pretraining
    vision-pretraining-type vocab-extra-ids vocab-file vocab-size wandb-exp-name wandb-project wandb-save-dir warmup
    weight-decay weight-decay-incr-style
    """
"""Megatron-LM's options that it has too, with the same meaning."""
_SHARED = MEGATRON_LM_OPTIONS.only(_OF_MEGATRON_LM.split())
_NEUTRAL = {
    **_SHARED.neutral,
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
    _SHARED.with_groups(
        option_groups(
            read="""
                checkpoint-activations checkpoint-num-layers= cpu-optimizer deepspeed deepspeed-activation-checkpointing
                deepspeed-config= no-pipeline-parallel num-key-value-heads= use-flash-attn use-flash-attn-builder
                rotary-position-embeddings-theta= use-flash-attn-triton use-flash-attn-v1 use-flash-attn-v2 zero-stage=
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
                    """,
                reasons.START: "lazy-mpu-init=",
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
                reasons.WATCHED: "profile=",
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
                reasons.EXPERTS: "moe-expert-parallel-size= num-experts=",
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
