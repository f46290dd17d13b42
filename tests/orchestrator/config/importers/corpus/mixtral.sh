#!/bin/bash
GPUS_PER_NODE=8
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
)
MODEL_PARALLEL_ARGS=(--tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 --expert-model-parallel-size 8)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 4 pretrain_gpt.py ${MOE_ARGS[@]} ${MODEL_PARALLEL_ARGS[@]} \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu --disable-bias-linear \
    --normalization RMSNorm --group-query-attention --num-query-groups 8 --position-embedding-type rope \
    --no-position-embedding --no-masked-softmax-fusion \
    --seq-length 4096 --max-position-embeddings 32768 --micro-batch-size 1 --global-batch-size 256 --bf16
