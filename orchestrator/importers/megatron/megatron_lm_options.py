"""Options of Megatron-LM's parser: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers import reasons
from orchestrator.importers.option_table import OptionTable, option_groups

_NEUTRAL = {
    "dataloader-type": "single|cyclic",
    "distributed-backend": "nccl",
    "empty-unused-memory-level": "0",
    "main-grads-dtype": "fp32",
    "main-params-dtype": "fp32",
    "moe-aux-loss-coeff": "0|0.0",
    "moe-router-dtype": "fp32",
    "moe-router-load-balancing-type": "none",
    "moe-router-score-function": "softmax",
    "optimizer": "adam",
    "rerun-mode": "disabled|validate_results",
    "tensor-parallel-num-weight-shards": "1",
    "timing-log-level": "0",
}

MEGATRON_LM_OPTIONS = OptionTable(
    "Megatron-LM",
    "Megatron-LM of 2026-08-22 (d98e8a64), megatron/training/arguments.py",
    option_groups(
        read="""
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split activation-func-clamp-value=
            add-qkv-bias attention-backend= attention-dropout= bf16 clip-grad= context-parallel-size= cp-comm-type=
            cpu-offloading-num-layers= cuda-graph-impl= cuda-graph-modules= cuda-graph-scope=
            data-parallel-sharding-strategy= ddp-bucket-size= decoder-first-pipeline-num-layers=
            decoder-last-pipeline-num-layers= disable-bias-linear disable-pad-vocab-size enable-cuda-graph
            encoder-num-layers= encoder-seq-length= exp-avg-dtype= exp-avg-sq-dtype= expert-model-parallel-size=
            expert-tensor-parallel-size= external-cuda-graph ffn-hidden-size= first-last-layers-bf16 fp16 fp4-format=
            fp4-param-gather fp4-recipe= fp8-format= fp8-param-gather fp8-recipe= global-batch-size= glu-linear-offset=
            grad-reduce-in-bf16 group-query-attention hidden-dropout= hidden-size= hierarchical-context-parallel-sizes=
            kv-channels= kv-lora-rank= make-vocab-size-divisible-by= max-position-embeddings= micro-batch-size=
            moe-enable-deepep moe-ffn-hidden-size= moe-flex-dispatcher-backend= moe-layer-freq= moe-router-topk=
            moe-shared-expert-intermediate-size= moe-token-dispatcher-type= mtp-num-layers= multi-latent-attention
            no-pad-vocab-size normalization= num-attention-heads= num-distributed-optimizer-instances= num-experts=
            num-layers-at-end-in-bf16= num-layers-at-start-in-bf16= num-layers-per-virtual-pipeline-stage= num-layers=
            num-query-groups= num-virtual-stages-per-pipeline-rank= optimizer-cpu-offload optimizer-offload-fraction=
            overlap-grad-reduce overlap-moe-expert-parallel-comm padded-vocab-size= pipeline-model-parallel-layout=
            pipeline-model-parallel-size= position-embedding-type= q-lora-rank= qk-head-dim= qk-layernorm
            qk-pos-emb-head-dim= quick-geglu rampup-batch-size= recompute-activations recompute-granularity=
            recompute-method= recompute-modules= recompute-num-layers= rotary-base= seq-length= sequence-parallel
            softmax-type= squared-relu step-batch-size-schedule= swiglu tensor-model-parallel-size= tokenizer-type=
            tp-comm-overlap transformer-impl= untie-embeddings-and-output-weights use-distributed-optimizer
            use-megatron-fsdp use-rotary-position-embeddings use-tp-pp-dp-mapping v-head-dim= vocab-size=
            window-attn-skip-freq= window-size=
            """,
        no_effect={
            reasons.LOGGING: """
                app-tag-run-name= app-tag-run-version= config-logger-dir= disable-flight-recorder-dump-on-timeout
                disable-flight-recorder-extra-dump-on-exec disable-flight-recorder-include-only-active
                disable-log-loss-scale-to-tensorboard disable-straggler-on-startup dump-param-to-param-group-map=
                flight-recorder-dump-path= flight-recorder-include-stack-trace flight-recorder-trace-buffer-size= help
                log-device-memory-used log-energy log-interval= log-max-attention-logit log-memory-interval=
                log-memory-to-tensorboard log-progress log-straggler log-throughput log-timers-to-tensorboard
                log-validation-ppl-to-tensorboard log-world-size-to-tensorboard logging-level= moe-per-layer-logging
                moe-routing-trace-capture-hidden-states moe-routing-trace-capture-logits moe-routing-trace-dump-weights
                moe-routing-trace-max-training-iters= moe-routing-trace-path= no-barrier-with-level-1-timing
                no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec
                no-flight-recorder-include-only-active no-log-loss-scale-to-tensorboard no-one-logger nvtx-ranges
                one-logger-async one-logger-project= one-logger-run-name= otel-enabled otel-service-name=
                otel-span-groups= profile-ranks= profile-step-end= profile-step-start=
                pytorch-profiler-collect-callstack pytorch-profiler-collect-chakra pytorch-profiler-collect-shapes
                record-shapes result-rejected-tracker-filename= run-workload-inspector-server straggler-ctrlr-port=
                straggler-minmax-count= tensorboard-dir= tensorboard-log-interval= tensorboard-queue-size=
                timing-log-option= wandb-entity= wandb-exp-name= wandb-project= wandb-save-dir=
                """,
            reasons.CHECKPOINTS: """
                adlr-autoresume adlr-autoresume-interval= async-ckpt-cpu-priority= async-ckpt-io-priority=
                async-ckpt-use-cpu-shm async-save async-strategy= auto-detect-ckpt-format ckpt-assume-constant-structure
                ckpt-convert-format= ckpt-convert-save= ckpt-convert-update-legacy-dist-opt-format
                ckpt-drop-redundant-extra-state ckpt-format= ckpt-fully-parallel-load
                ckpt-fully-parallel-load-exchange-algo= ckpt-fully-parallel-load-per-rank-objects
                ckpt-fully-parallel-load-process-group= ckpt-fully-parallel-save ckpt-fully-parallel-save-process-group=
                ckpt-pg-tensors-cache-create ckpt-pg-tensors-cache-path= ckpt-step=
                disable-ckpt-load-validate-sharding-integrity disable-save-tokenizer-assets
                disable-strict-fsdp-dtensor-load disable-use-tokenizer-model-from-checkpoint-args dist-ckpt-format=
                dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014 dist-ckpt-strictness= dist-ckpt-workers=
                distrib-optim-fully-reshardable-mem-efficient exit-on-missing-checkpoint finetune
                load-main-params-from-ckpt load= moe-upcycling-granularity= moe-use-upcycling
                no-ckpt-fully-parallel-save no-ckpt-load-validate-sharding-integrity no-load-optim no-load-rng
                no-save-optim no-save-rng no-save-tokenizer-assets no-strict-fsdp-dtensor-load
                no-use-tokenizer-model-from-checkpoint-args non-persistent-ckpt-type= non-persistent-global-ckpt-dir=
                non-persistent-local-ckpt-algo= non-persistent-local-ckpt-dir= non-persistent-save-interval=
                override-ckpt-iteration= override-opt-param-scheduler persistent-save-interval= pretrained-checkpoint=
                replication replication-factor= replication-jump= save-activations-interval= save-dgrads-interval=
                save-interval= save-params-interval= save-retain-interval= save-tokens-per-expert-interval=
                save-wgrads-interval= save= use-checkpoint-opt-param-scheduler use-dist-ckpt use-persistent-ckpt-worker
                verify-integrity
                """,
            reasons.EVALUATION: """
                disable-manual-gc-eval eval-global-batch-size= eval-interval= eval-iters= eval-micro-batch-size=
                full-validation multiple-validation-sets no-manual-gc-eval start-eval-at-iter= test-data-path=
                valid-data-path= validation-set-names=
                """,
            reasons.TOKENS: """
                allow-ambiguous-pad-tokens chat-template= data-args-path= data-cache-path= data-path=
                dataloader-defer-npy-index-mmap dataloader-fast-cache-load disable-msc
                disable-tokenizer-sentencepiece-ignore-extra-whitespaces enable-msc eod-mask-loss fim-data
                fim-eod-token= fim-fragment-rate= fim-middle-token= fim-no-prefix= fim-pad-token= fim-prefix-token=
                fim-rate= fim-split-sample= fim-spm-rate= fim-suffix-token= iterations-to-skip= merge-file=
                mid-level-dataset-surplus= mock-data no-mmap-bin-files
                no-tokenizer-sentencepiece-ignore-extra-whitespaces null-tokenizer-eod-id= null-tokenizer-pad-id=
                num-dataset-builder-threads= object-storage-cache-path= per-dataset-sequences-path=
                per-split-data-args-path= phase-transition-iterations= sample-rate= short-seq-prob= split= test-mode
                tiktoken-num-special-tokens= tiktoken-pattern= tokenizer-hf-no-include-special-tokens
                tokenizer-hf-no-use-fast tokenizer-metadata= tokenizer-model= tokenizer-sentencepiece-legacy
                tokenizer-special-tokens= train-data-path= trust-remote-code use-gigatoken vocab-extra-ids= vocab-file=
                """,
            reasons.LEARNING: """
                adam-beta1= adam-beta2= adam-eps= apply-layernorm-1p apply-query-key-layer-scaling
                apply-wd-to-qk-layernorm calculate-per-token-loss check-for-large-grads check-for-spiky-loss
                data-parallel-random-init decoupled-lr= decoupled-min-lr= end-weight-decay= hysteresis=
                initial-loss-scale= lion-beta1= lion-beta2= loss-scale-window= loss-scale= lr-decay-iters=
                lr-decay-samples= lr-decay-style= lr-warmup-fraction= lr-warmup-init= lr-warmup-iters=
                lr-warmup-samples= lr-wsd-decay-iters= lr-wsd-decay-samples= lr-wsd-decay-style= lr= min-loss-scale=
                min-lr= mscale-all-dim= mscale= mtp-loss-scaling-factor= muon-coefficient-type= muon-extra-scale-factor=
                muon-fp32-matmul-prec= muon-momentum= muon-nesterov muon-no-split-qkv muon-num-ns-steps=
                muon-scalar-optimizer= muon-scale-mode= muon-tp-mode= muon-use-syrk mup-attn-scale-power=
                mup-base-head-dim= mup-base-hidden-size= mup-embedding-mult= mup-output-mult= mup-width-mult=
                no-check-for-nan-in-loss-and-grad no-rope-freq= no-weight-decay-cond-type=
                no-yarn-correction-range-round-to-int norm-epsilon= onnx-safe= rope-scaling-factor= rope-type=
                rotary-interleaved rotary-percent= rotary-scaling-factor= rotary-seq-len-interpolation-factor=
                sgd-momentum= start-weight-decay= use-rope-scaling weight-decay-incr-style= weight-decay=
                yarn-beta-fast= yarn-beta-slow= yarn-correction-range-round-to-int
                yarn-original-max-position-embeddings=
                """,
            reasons.FORCED_ROUTING: """
                moe-enable-routing-replay moe-router-force-biased= moe-router-force-load-balancing
                """,
            reasons.START: """
                bert-no-binary-head disable-gloo-process-groups distributed-timeout-minutes=
                distributed-timeout-seconds-after-init= embedding-init-method-std= enable-experimental
                inference-rng-tracker init-method-std= init-method-xavier-uniform init-model-with-meta-device
                lazy-mpu-init local-rank= no-initialization seed= te-rng-tracker use-cpu-initialization use-mcore-models
                use-mup
                """,
            reasons.DURATION: """
                exit-duration-in-mins= exit-interval= exit-signal-handler exit-signal-handler-for-dataloader
                exit-signal-handler-for-training exit-signal= train-iters= train-samples=
                """,
            reasons.OTHER_PROGRAMS: """
                bert-embedder-type= bert-load= biencoder-projection-dim= biencoder-shared-query-context-model
                block-data-path= cache-mla-latents classes-fraction= data-per-class-fraction= decode-only-cuda-graphs
                decoder-seq-length= dino-bottleneck-size= dino-freeze-last-layer= dino-head-hidden-size=
                dino-local-crops-number= dino-local-img-size= dino-norm-last-layer dino-teacher-temp=
                dino-warmup-teacher-temp-epochs= dino-warmup-teacher-temp= embedding-path= enable-chunked-prefill
                evidence-data-path= flash-decode grpo-clamp-eps-lower= grpo-clamp-eps-upper= grpo-entropy-term-weight=
                grpo-filter-groups-with-same-reward grpo-group-size= grpo-iterations= grpo-kl-beta=
                grpo-prompts-per-step= head-lr-mult= ict-head-size= ict-load= img-h= img-w= indexer-batch-size=
                indexer-log-interval= inference-batch-times-seqlen-threshold= inference-coordinator-port=
                inference-cuda-graph-all-prefills inference-cuda-graph-max-tokens= inference-cuda-graph-scope=
                inference-disable-ep-consensus inference-disable-triton-nvls-kernels inference-dynamic-batching
                inference-dynamic-batching-async-sched-mode= inference-dynamic-batching-block-size=
                inference-dynamic-batching-buffer-size-gb= inference-dynamic-batching-cuda-graph-mixed-prefill-count=
                inference-dynamic-batching-cuda-graph-sizing-distribution= inference-dynamic-batching-logprobs-mode=
                inference-dynamic-batching-mamba-memory-ratio= inference-dynamic-batching-max-requests=
                inference-dynamic-batching-max-tokens= inference-dynamic-batching-num-cuda-graphs=
                inference-dynamic-batching-paused-buffer-size-gb= inference-dynamic-batching-prefix-caching
                inference-dynamic-batching-prefix-caching-coordinator-policy=
                inference-dynamic-batching-prefix-caching-eviction-policy=
                inference-dynamic-batching-prefix-caching-mamba-gb=
                inference-dynamic-batching-prefix-caching-routing-alpha= inference-dynamic-batching-sampling-backend=
                inference-dynamic-batching-track-generated-token-events
                inference-dynamic-batching-track-paused-request-events inference-dynamic-batching-unified-memory-level=
                inference-fuse-tp-communication inference-grouped-gemm-backend= inference-logging-step-interval=
                inference-max-requests= inference-max-seq-length= inference-moe-disable-fused-quant-kernels
                inference-moe-token-dispatcher-type= inference-shards= inference-text-gen-server-logging
                inference-use-synchronous-zmq-collectives inference-wandb-logging iter-per-epoch= langrl-env-config=
                logits-load-decode-threads= logits-load-dir= logits-load-ignore-errors logits-load-kd-loss-alpha=
                logits-load-msc-prefetch-depth= logits-load-prefetch-factor= logits-save-dir= logits-save-dtype=
                logits-save-top-k= logits-save-top-p-min-k= logits-save-top-p= mamba-inference-conv-states-dtype=
                mamba-inference-ssm-states-dtype= mask-factor= mask-prob= mask-type= max-tokens-to-oom=
                mlp-chunks-for-prefill= moe-pad-experts-for-cuda-graph-inference nccl-all-reduce-for-prefill
                no-data-sharding no-inference-disable-ep-consensus no-inference-dynamic-batching-prefix-caching
                no-inference-text-gen-server-logging no-inference-use-synchronous-zmq-collectives
                no-inference-wandb-logging no-rl-inference-logprobs-is-correction
                no-rl-offload-inference-model-weights-when-idle no-rl-partial-rollouts no-rl-persist-cuda-graphs
                no-rl-skip-bos-token no-rl-training-cuda-graphs no-rl-use-sequence-packing
                no-rl-verify-model-weights-swap num-channels= num-classes= num-speculative-tokens=
                output-bert-embeddings patch-dim= perform-rl-step query-in-block-prob= refit-method=
                retriever-report-topk-accuracies= retriever-score-scaling rl-consumption-granularity=
                rl-default-temperature= rl-default-top-k= rl-default-top-p= rl-durable-rollout-bank rl-generation-lag=
                rl-importance-sampling-truncation-coef= rl-inference-expert-model-parallel-size=
                rl-inference-expert-tensor-model-parallel-size= rl-inference-logprobs-is-correction
                rl-inference-model-unified-memory-level= rl-inference-parsers=
                rl-inference-pipeline-model-parallel-size= rl-inference-tensor-model-parallel-size=
                rl-kv-cache-management-mode= rl-max-inflight-requests= rl-offload-inference-model-weights-when-idle
                rl-offload-optimizer-during-inference rl-partial-rollouts rl-persist-cuda-graphs rl-profile
                rl-profile-dir= rl-prompts-per-eval= rl-rollout-bank-dir= rl-rollout-bank-max-bytes=
                rl-sequence-packing-algo= rl-sequence-packing-max-sequences-per-bin= rl-skip-bos-token
                rl-submission-granularity= rl-training-cuda-graphs rl-use-sequence-packing rl-verify-model-weights-swap
                sft-tokenizer-prompt-format= swin-backbone-type= titles-data-path= use-legacy-static-engine
                use-one-sent-docs use-same-sampling-seed-across-dp-ranks vision-backbone-type= vision-pretraining-type=
                """,
            reasons.FAILURES: """
                calc-ft-timeouts check-weight-hash-across-dp-replicas-interval= enable-ft-package error-injection-rate=
                error-injection-type= fault-injector-delay-start-iteration= fault-injector-fault-delay=
                fault-injector-fault-probabilities= fault-injector-fault-types= fault-injector-mtti-seconds=
                fault-injector-num-ranks= fault-injector-offset-seconds= fault-injector-ranks= fault-injector-seed=
                ft-num-warmup-iters= gpu-sniff-test-interval= inprocess-active-world-size= inprocess-barrier-timeout=
                inprocess-completion-timeout= inprocess-empty-cuda-cache inprocess-granularity= inprocess-hard-timeout=
                inprocess-heartbeat-interval= inprocess-heartbeat-timeout= inprocess-last-call-wait=
                inprocess-max-iterations= inprocess-monitor-process-interval= inprocess-monitor-thread-interval=
                inprocess-progress-watchdog-interval= inprocess-restart inprocess-soft-timeout=
                inprocess-termination-grace-time=
                """,
            reasons.BESIDE_A_REFUSED_OPTION: """
                disable-dsa-indexer-rotate-activation disable-dsa-indexer-scoring-relu disable-mamba-mem-eff-path
                dsa-indexer-head-dim= dsa-indexer-k-norm-epsilon= dsa-indexer-k-norm-fp32 dsa-indexer-loss-coeff=
                dsa-indexer-n-heads= dsa-indexer-rope-interleaved dsa-indexer-skip-topk-offset= dsa-indexer-topk=
                dsa-indexer-topk-freq= dsa-indexer-use-sparse-loss dsa-kernel-backend= enable-full-sharding-in-hsdp
                expert-tensor-parallel-num-weight-shards= fp4-quantizer-factory= fp8-output-proj fp8-quantizer-factory=
                gdp-cutedsl-kernel gdp-num-chunk-states-to-recompute= gdp-num-householder= kitchen-attention-backend=
                linear-conv-kernel-dim= linear-key-head-dim= linear-num-key-heads= linear-num-value-heads=
                linear-value-head-dim= mamba-head-dim= mamba-num-groups= mamba-num-heads= mamba-state-dim=
                mamba-training-ssm-states-dtype= max-seqlen-per-dp-cp-rank= mhc-init-gating-factor=
                mhc-num-residual-streams= mhc-recompute-layer-num= mhc-sinkhorn-iterations= moe-router-padding-for-fp8
                moe-router-padding-for-quantization mrope-section= mtp-standalone no-dsa-indexer-rotate-activation
                no-dsa-indexer-scoring-relu outer-dp-sharding-strategy= relative-attention-max-distance=
                relative-attention-num-buckets= torch-fsdp2-no-reshard-after-forward
                """,
        },
        noted={
            reasons.NO_AUXILIARY_LOSS: """
                moe-aux-loss-coeff= moe-router-bias-update-rate= moe-router-enable-expert-bias
                moe-router-load-balancing-type= moe-router-quantile-balancing-ema= moe-z-loss-coeff=
                """,
            reasons.ROUTING: """
                moe-apply-probs-on-input moe-input-jitter-eps= moe-router-group-topk= moe-router-num-groups=
                moe-router-pre-softmax moe-router-score-function= moe-router-topk-scaling-factor=
                """,
            reasons.NO_CAPACITY: """
                moe-expert-capacity-factor= moe-expert-rank-capacity-factor= moe-pad-expert-input-to-capacity
                moe-token-drop-policy=
                """,
            "Megatron-LM of this version reads it nowhere; --attention-backend chooses the kernel": "use-flash-attn",
            reasons.ARITHMETIC: """
                apply-residual-connection-post-layernorm attention-softmax-in-fp32 batch-invariant-backend=
                batch-invariant-mode deterministic-mode disable-bf16-reduced-precision-matmul
                disable-clone-scatter-output-in-embedding disable-fp8-wgrad fp16-lm-cross-entropy
                fp32-residual-connection fp8-amax-compute-algo= fp8-amax-history-len= fp8-interval= fp8-margin=
                moe-router-dtype= no-clone-scatter-output-in-embedding no-fp8-wgrad openai-gelu output-logit-dtype=
                qk-clip qk-clip-alpha= qk-clip-threshold= qk-l2-norm use-fused-weighted-squared-relu
                use-te-activation-func
                """,
            reasons.WATCHED: """
                log-num-zeros-in-grad log-params-norm memory-snapshot-path= profile record-memory-history rerun-mode=
                timing-log-level= use-pytorch-profiler
                """,
            reasons.KERNELS: """
                cross-entropy-fusion-impl= cross-entropy-loss-fusion
                cuda-graph-warmup-steps= delay-offload-until-cuda-graph disable-jit-fuser
                disable-tp-comm-bulk-dgrad disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag
                disable-tp-comm-overlap-rs disable-tp-comm-split-ag disable-tp-comm-split-rs
                flash-attention-version= fused-residual-rmsnorm mla-down-proj-fusion
                mlp-chunks-for-training= moe-grouped-gemm moe-mlp-glu-interleave-size= moe-permute-fusion
                moe-router-fusion moe-shared-expert-glu-interleave-size= moe-single-grouped-bias
                moe-single-grouped-weight moe-use-grouped-tensor no-bias-dropout-fusion no-bias-gelu-fusion
                no-bias-swiglu-fusion no-gradient-accumulation-fusion no-masked-softmax-fusion no-persist-layer-norm
                no-rope-fusion no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs
                no-tp-comm-split-ag no-tp-comm-split-rs optimizer-cuda-graph symmetric-ar-type=
                tp-comm-bootstrap-backend= tp-comm-overlap-cfg= tp-comm-overlap-rs-dgrad
                use-grouped-gemm-for-dense-mlp use-grouped-gemm-for-shared-expert use-transformer-engine-op-fuser
                """,
            reasons.COMMUNICATION: """
                create-all-gather-group ddp-average-in-collective ddp-num-buckets= ddp-pad-buckets-for-high-nccl-busbw
                defer-embedding-wgrad-compute delay-wgrad-compute disable-align-grad-reduce
                disable-symmetric-registration distributed-backend= ep-overlap-early-attn-memory-release
                fake-process-group fsdp-db-use-persist-buf-on-alloc-fail fsdp-double-buffer fsdp-manual-registration
                gtp-expert-remat-nccl-ub gtp-remat-nccl-ub high-priority-a2a-comm-stream high-priority-stream-groups=
                megatron-fsdp-enable-fine-grained-param-gather megatron-fsdp-max-pool-double-buffer
                megatron-fsdp-version= microbatch-group-size-per-virtual-pipeline-stage= moe-combine-bwd-dtype=
                moe-deepep-num-sms= moe-dispatch-fwd-dtype= moe-flex-dispatcher-num-sms=
                moe-hybridep-num-blocks-permute= moe-hybridep-num-blocks-unpermute= moe-hybridep-num-sms-preprocessing=
                moe-hybridep-num-sms= moe-hybridep-pad-uneven-dispatch-inputs moe-ncclep-zero-copy
                moe-permute-fusion-into-hybridep moe-shared-expert-overlap nccl-communicator-config-path=
                no-align-grad-reduce no-align-param-gather no-gradient-reduce-div-fusion no-overlap-p2p-communication
                no-use-layer-wise-param-layout overlap-dispatch-backward-with-experts-wgrad
                overlap-p2p-communication-warmup-flush overlap-param-gather overlap-param-gather-with-optimizer-step
                pipeline-model-parallel-comm-backend= sharp-enabled-group= suggested-communication-unit-size=
                train-sync-interval= use-nccl-ub use-ring-exchange-p2p use-sharp wgrad-deferral-limit=
                """,
            reasons.OPTIMIZER_STATES: """
                accumulate-allreduce-grads-in-fp32 activation-offload-fraction= cpu-offloading-retain-pinned-cpu-buffers
                ddp-param-name-patterns-for-fp32-local-accumulation= ddp-reduce-scatter-with-fp32-accumulation
                delta-offload-bytes-across-pp-ranks= empty-unused-memory-level=
                fine-grained-offloading-max-inflight-offloads= gtp-remat-reduce-scatter-with-fp32-accumulation
                keep-fp8-transpose-cache main-grads-dtype= main-params-dtype= megatron-fsdp-grad-comm-dtype=
                megatron-fsdp-main-grads-dtype= megatron-fsdp-main-params-dtype= min-offloaded-tensor-size=
                moe-paged-stash moe-paged-stash-buffer-size-factor-cpu= moe-paged-stash-buffer-size-factor-cuda=
                moe-paged-stash-page-size= no-pin-cpu-grads no-pin-cpu-params optimizer= overlap-cpu-optimizer-d2h-h2d
                reuse-grad-buf-for-mxfp8-param-ag use-precision-aware-optimizer use-torch-optimizer-for-cpu-offload
                """,
            reasons.HOST: """
                dataloader-type= manual-gc manual-gc-interval= no-create-attention-mask-in-dataloader num-workers=
                """,
            reasons.DOCUMENTS: "dataloader-inter-document-masking reset-attention-mask reset-position-ids",
        },
        refused={
            reasons.CONTEXT_PARALLELISM: "hybrid-context-parallel",
            reasons.MODULES: "moe-layer-recompute",
            reasons.LOW_PRECISION: "te-precision-config-file=",
            reasons.PARTIAL_RECOMPUTATION: "distribute-saved-activations",
            reasons.OFFLOADED_MODULES: "fine-grained-activation-offloading offload-modules=",
            reasons.SHARDING: """
                gtp-remat-opt-in-modules= tensor-parallel-num-weight-shards=
                use-torch-fsdp2
                """,
            reasons.WHOLE_GPT: "freeze-all-layers sft skip-train vision-pretraining",
            "the model is described in another file, which is not read": """
                heterogeneous-layers-config-path= spec= yaml-cfg=
                """,
            reasons.NO_MODEL_FIELD: """
                attention-output-gate decoder-num-layers= enable-mhc-connections experimental-attention-variant=
                heterogeneous-layers-config-encoded-json= hybrid-layer-pattern= hybrid-override-pattern= is-hybrid-model
                linear-attention-freq= moe-latent-size= moe-shared-expert-gate mtp-detach-heads mtp-hsm
                mtp-hybrid-override-pattern= mtp-use-repeated-layer no-position-embedding use-kitchen-attention
                """,
            reasons.FIXED_BATCH: "decrease-batch-size-if-needed",
            "the values are in a checkpoint, which is not read": """
                use-checkpoint-args use-mp-args-from-checkpoint-args
                """,
            "the trainer has no such option any more": """
                batch-size= checkpoint-activations model-parallel-size= warmup=
                """,
        },
    ),
    neutral=_NEUTRAL,
    prefix="--",
)
