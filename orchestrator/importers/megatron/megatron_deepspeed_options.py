"""Options of Megatron-DeepSpeed's parser: what each one means for an import."""

from __future__ import annotations

from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import Handling, OptionGroup, OptionTable

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
        (
            OptionGroup(
                Handling.READ,
                "",
                """
            checkpoint-activations checkpoint-num-layers= cpu-optimizer deepspeed deepspeed-activation-checkpointing
            deepspeed-config= no-pipeline-parallel num-key-value-heads= use-flash-attn-builder use-flash-attn-triton
            use-flash-attn-v1 use-flash-attn-v2 zero-stage=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it only changes what is logged",
                """
            log-batch-size-to-tensorboard log-optimizer-states-to-tensorboard no-log-learnig-rate-to-tensorboard
            profile-backward profile-steps=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it only changes checkpoints, and a trial writes none",
                """
            kill-switch-file= load-tag= no-load-lr-state reset-iteration universal-checkpoint
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it only changes which tokens are trained on",
                """
            aml-data-download-path= data-impl= mmap-warmup repeated-dataloader return-data-index
            train-data-exact-num-epochs= train-desc-path= train-doc-idx-path= train-idx-path= train-sample-idx-path=
            train-shuffle-idx-path= use-dataset-only=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it changes what is learned, not the work of a step",
                """
            layernorm-epsilon= lr-decay-tokens= lr-warmup-tokens= no-query-key-layer-scaling
            rotary-position-embeddings-theta=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it only changes how long the training is; a trial trains a few steps",
                """
            train-tokens=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "pretrain_gpt.py trains the same with it: it is for other programs, or for inference",
                """
            deepscale deepscale-config= ds-inference inference pipeline-model-parallel-split-rank= retriever-seq-length=
            retro-add-retriever retro-cyclic-train-iters= retro-encoder-attention-dropout= retro-encoder-hidden-dropout=
            retro-encoder-layers= retro-num-neighbors= retro-num-retrieved-chunks= retro-return-doc-ids retro-workdir=
            """,
            ),
            OptionGroup(
                Handling.NO_EFFECT,
                "it has an effect only together with an option that is refused",
                """
            create-moe-param-group disable-moe-token-dropping disable-moe-top2-2nd-expert-sampling
            ds-sequence-parallel-fpdt-chunk-size= ds-sequence-parallel-fpdt-offloading enable-expert-tensor-parallelism
            expert-interval= hidden-size-teacher= kd-alpha-ce= kd-beta-ce= kd-temp= load-teacher= mlp-type=
            moe-eval-capacity-factor= moe-loss-coeff= moe-min-capacity= moe-train-capacity-factor=
            num-attention-heads-teacher= num-experts-switch= num-experts-teacher= num-layers-teacher= tile-factor= topk=
            use-tutel
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "sequences split over ranks (Ulysses) are no axis of a layout",
                """
            ds-sequence-parallel-fpdt ds-sequence-parallel-size= force-ds-sequence-parallel
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "experts are no part of a model, and expert parallelism is no axis of a layout",
                """
            moe-expert-parallel-size=
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "8-bit and 4-bit arithmetic are no values of precision",
                """
            fp8-e4m3 fp8-hybrid
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "partial recomputation is no value of activation_checkpointing",
                """
            checkpoint-in-cpu distribute-checkpointed-activations partition-activations
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "this pipeline schedule is no value of pipeline_schedule",
                """
            enable-zbh1-exact-semantics enable-zbh1-pipeline
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "parameters in host memory are no value of offload",
                """
            remote-device=
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "a search trains every layer of a GPT on tokens in sequences of one length",
                """
            data-efficiency-curriculum-learning kd mos random-ltd
            """,
            ),
            OptionGroup(
                Handling.REFUSED,
                "uneven pipeline stages are no axis of a layout",
                """
            standalone-embedding-stage
            """,
            ),
            OptionGroup(
                Handling.NOTED,
                "it changes the arithmetic or memory of a layer",
                """
            embedding-weights-in-fp32 memory-centric-tiled-linear
            """,
            ),
            OptionGroup(
                Handling.NOTED,
                "Megatron-DeepSpeed has no such option",
                """
                attention-backend=
                """,
            ),
            OptionGroup(
                Handling.NOTED,
                "trials have Megatron-DeepSpeed's own layers, of the local implementation",
                """
            transformer-impl=
            """,
            ),
            OptionGroup(
                Handling.NOTED,
                "it changes which kernels run",
                """
            disable-mem-efficient-ln
            """,
            ),
            OptionGroup(
                Handling.NOTED,
                "it changes how ranks communicate",
                """
            DDP-impl= contigious-checkpointing no-async-tensor-model-parallel-allreduce
            no-contiguous-buffers-in-local-ddp no-scatter-gather-tensors-in-pipeline overlap-p2p-communication
            scattered-embeddings split-transformers synchronize-each-layer use-pin-memory zero-allgather-bucket-size=
            zero-contigious-gradients zero-reduce-bucket-size= zero-reduce-scatter
            """,
            ),
            OptionGroup(
                Handling.NOTED,
                "it changes the precision or memory of gradients or of the optimizer",
                """
            cpu-torch-adam ds-fused-adam
            """,
            ),
        )
    ).groups,
    neutral=_NEUTRAL,
    prefix="--",
)
