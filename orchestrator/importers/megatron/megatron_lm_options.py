"""Options of Megatron-LM's parser: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers.megatron.megatron_lm_no_effect import MEGATRON_LM_NO_EFFECT
from orchestrator.importers.option_table import Handling, OptionGroup, OptionTable

_NEUTRAL = {
    "context-parallel-size": "1",
    "cpu-offloading-num-layers": "0",
    "cuda-graph-impl": "none",
    "dataloader-type": "single|cyclic",
    "distributed-backend": "nccl",
    "empty-unused-memory-level": "0",
    "exp-avg-dtype": "fp32",
    "exp-avg-sq-dtype": "fp32",
    "expert-model-parallel-size": "1",
    "main-grads-dtype": "fp32",
    "main-params-dtype": "fp32",
    "mtp-num-layers": "0",
    "num-distributed-optimizer-instances": "1",
    "optimizer": "adam",
    "rerun-mode": "disabled|validate_results",
    "tensor-parallel-num-weight-shards": "1",
    "timing-log-level": "0",
}

MEGATRON_LM_OPTIONS = OptionTable(
    "Megatron-LM",
    "Megatron-LM of 2026-08-22 (d98e8a64), megatron/training/arguments.py",
    (
        *MEGATRON_LM_NO_EFFECT,
        OptionGroup(
            Handling.READ,
            "",
            """
            attention-backend= attention-dropout= bf16 clip-grad=
            data-parallel-sharding-strategy= ddp-bucket-size= disable-bias-linear disable-pad-vocab-size
            encoder-num-layers= encoder-seq-length= ffn-hidden-size= fp16 global-batch-size= group-query-attention
            hidden-dropout= hidden-size= kv-channels= make-vocab-size-divisible-by= max-position-embeddings=
            micro-batch-size= no-pad-vocab-size normalization= num-attention-heads= num-layers=
            num-layers-per-virtual-pipeline-stage= num-query-groups= num-virtual-stages-per-pipeline-rank=
            optimizer-cpu-offload optimizer-offload-fraction= overlap-grad-reduce padded-vocab-size=
            pipeline-model-parallel-size= position-embedding-type= quick-geglu rampup-batch-size= recompute-activations
            recompute-granularity= recompute-method= recompute-modules= recompute-num-layers= seq-length=
            sequence-parallel step-batch-size-schedule= swiglu tensor-model-parallel-size= tokenizer-type=
            transformer-impl= untie-embeddings-and-output-weights use-distributed-optimizer use-flash-attn
            use-megatron-fsdp use-rotary-position-embeddings use-tp-pp-dp-mapping vocab-size=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "context parallelism is no axis of a layout",
            """
            context-parallel-size= hybrid-context-parallel
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "experts are no part of a model, and expert parallelism is no axis of a layout",
            """
            expert-model-parallel-size= moe-layer-recompute moe-shared-expert-intermediate-size= num-experts=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "8-bit and 4-bit arithmetic are no values of precision",
            """
            fp4-format= fp8-format= te-precision-config-file=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "uneven pipeline stages are no axis of a layout",
            """
            account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split
            decoder-first-pipeline-num-layers= decoder-last-pipeline-num-layers= pipeline-model-parallel-layout=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "partial recomputation is no value of activation_checkpointing",
            """
            distribute-saved-activations
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "activations in host memory are no value of offload",
            """
            cpu-offloading-num-layers= fine-grained-activation-offloading offload-modules=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "this sharding is no value of zero_stage",
            """
            gtp-remat-opt-in-modules= num-distributed-optimizer-instances= tensor-parallel-num-weight-shards=
            use-torch-fsdp2
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "a search trains every layer of a GPT on tokens in sequences of one length",
            """
            freeze-all-layers sft skip-train vision-pretraining
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "the model is described in another file, which is not read",
            """
            heterogeneous-layers-config-path= spec= yaml-cfg=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "no field of the model section expresses it",
            """
            attention-output-gate decoder-num-layers= enable-mhc-connections experimental-attention-variant=
            heterogeneous-layers-config-encoded-json= hybrid-layer-pattern= hybrid-override-pattern= is-hybrid-model
            linear-attention-freq= mtp-num-layers= multi-latent-attention no-position-embedding use-kitchen-attention
            window-size=
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "the global batch of a search is fixed",
            """
            decrease-batch-size-if-needed
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "the values are in a checkpoint, which is not read",
            """
            use-checkpoint-args use-mp-args-from-checkpoint-args
            """,
        ),
        OptionGroup(
            Handling.REFUSED,
            "Megatron-LM has no such option any more",
            """
            batch-size= checkpoint-activations model-parallel-size= warmup=
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it changes the arithmetic or memory of a layer",
            """
            activation-func-clamp-value= add-qkv-bias apply-residual-connection-post-layernorm attention-softmax-in-fp32
            batch-invariant-backend= batch-invariant-mode deterministic-mode disable-bf16-reduced-precision-matmul
            disable-clone-scatter-output-in-embedding fp16-lm-cross-entropy fp32-residual-connection glu-linear-offset=
            no-clone-scatter-output-in-embedding openai-gelu output-logit-dtype= qk-clip qk-clip-alpha=
            qk-clip-threshold= qk-l2-norm qk-layernorm squared-relu use-fused-weighted-squared-relu
            use-te-activation-func
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it adds work to the steps that it watches",
            """
            log-num-zeros-in-grad log-params-norm memory-snapshot-path= profile record-memory-history rerun-mode=
            timing-log-level= use-pytorch-profiler
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it changes which kernels run",
            """
            cross-entropy-fusion-impl= cross-entropy-loss-fusion cuda-graph-impl= cuda-graph-modules= cuda-graph-scope=
            cuda-graph-warmup-steps= delay-offload-until-cuda-graph disable-jit-fuser disable-tp-comm-bulk-dgrad
            disable-tp-comm-bulk-wgrad disable-tp-comm-overlap-ag disable-tp-comm-overlap-rs disable-tp-comm-split-ag
            disable-tp-comm-split-rs enable-cuda-graph external-cuda-graph flash-attention-version=
            fused-residual-rmsnorm mlp-chunks-for-training= no-bias-dropout-fusion no-bias-gelu-fusion
            no-bias-swiglu-fusion no-gradient-accumulation-fusion no-masked-softmax-fusion no-persist-layer-norm
            no-rope-fusion no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-overlap-ag no-tp-comm-overlap-rs
            no-tp-comm-split-ag no-tp-comm-split-rs optimizer-cuda-graph symmetric-ar-type= tp-comm-bootstrap-backend=
            tp-comm-overlap tp-comm-overlap-cfg= tp-comm-overlap-rs-dgrad use-grouped-gemm-for-dense-mlp
            use-grouped-gemm-for-shared-expert use-transformer-engine-op-fuser
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it changes how ranks communicate",
            """
            create-all-gather-group ddp-average-in-collective ddp-num-buckets= ddp-pad-buckets-for-high-nccl-busbw
            defer-embedding-wgrad-compute delay-wgrad-compute disable-align-grad-reduce disable-symmetric-registration
            distributed-backend= fake-process-group fsdp-db-use-persist-buf-on-alloc-fail fsdp-double-buffer
            fsdp-manual-registration gtp-expert-remat-nccl-ub gtp-remat-nccl-ub high-priority-stream-groups=
            megatron-fsdp-enable-fine-grained-param-gather megatron-fsdp-max-pool-double-buffer megatron-fsdp-version=
            microbatch-group-size-per-virtual-pipeline-stage= nccl-communicator-config-path= no-align-grad-reduce
            no-align-param-gather no-gradient-reduce-div-fusion no-overlap-p2p-communication
            no-use-layer-wise-param-layout overlap-p2p-communication-warmup-flush overlap-param-gather
            overlap-param-gather-with-optimizer-step pipeline-model-parallel-comm-backend= sharp-enabled-group=
            suggested-communication-unit-size= train-sync-interval= use-nccl-ub use-ring-exchange-p2p use-sharp
            wgrad-deferral-limit=
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it changes the precision or memory of gradients or of the optimizer",
            """
            accumulate-allreduce-grads-in-fp32 activation-offload-fraction= cpu-offloading-retain-pinned-cpu-buffers
            ddp-param-name-patterns-for-fp32-local-accumulation= ddp-reduce-scatter-with-fp32-accumulation
            delta-offload-bytes-across-pp-ranks= empty-unused-memory-level= exp-avg-dtype= exp-avg-sq-dtype=
            fine-grained-offloading-max-inflight-offloads= grad-reduce-in-bf16
            gtp-remat-reduce-scatter-with-fp32-accumulation main-grads-dtype= main-params-dtype=
            megatron-fsdp-grad-comm-dtype= megatron-fsdp-main-grads-dtype= megatron-fsdp-main-params-dtype=
            min-offloaded-tensor-size= no-pin-cpu-grads no-pin-cpu-params optimizer= overlap-cpu-optimizer-d2h-h2d
            use-precision-aware-optimizer use-torch-optimizer-for-cpu-offload
            """,
        ),
        OptionGroup(
            Handling.NOTED,
            "it changes the work of the host beside the GPUs",
            """
            dataloader-inter-document-masking dataloader-type= manual-gc manual-gc-interval=
            no-create-attention-mask-in-dataloader num-workers= reset-attention-mask reset-position-ids
            """,
        ),
    ),
    neutral=_NEUTRAL,
    prefix="--",
)
