#!/bin/bash
log() { echo "[$(date +%T)] $*"; }

model_args() {
    MODEL_ARGS="--num-layers 12 --hidden-size 768 --num-attention-heads 12"
    MODEL_ARGS="$MODEL_ARGS --seq-length 1024 --max-position-embeddings 1024"
}

function launch {
    local gpus=$1
    shift
    log "starting on $gpus GPUs"
    torchrun --nproc_per_node $gpus pretrain_gpt.py "$@"
}

model_args
launch 4 $MODEL_ARGS --micro-batch-size 8 --global-batch-size 512 --bf16 \
    --attention-dropout 0 --hidden-dropout 0 --use-distributed-optimizer
