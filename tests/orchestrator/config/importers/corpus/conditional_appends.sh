#!/bin/bash
SP=1
CHECKPOINT=0
NAME=llama-small
ARGS=(--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024)
[ "$SP" = 1 ] && ARGS+=(--sequence-parallel)
[[ $CHECKPOINT -eq 1 ]] && ARGS+=(--recompute-activations)
[[ "$NAME" == llama-* ]] && ARGS+=(--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear)
(( SP > 1 )) && ARGS+=(--fp16) || ARGS+=(--bf16)
test -z "$MISSING" || echo "set"
torchrun --nproc_per_node=8 pretrain_gpt.py "${ARGS[@]}" --tensor-model-parallel-size 2 \
    --micro-batch-size 4 --global-batch-size 256 --attention-dropout 0 --hidden-dropout 0
