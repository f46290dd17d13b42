#!/bin/bash
# Tries three micro-batches, one after the other.
for MICRO in 1 2 4; do
    torchrun --nproc_per_node 8 pretrain_gpt.py \
        --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
        --seq-length 2048 --max-position-embeddings 2048 \
        --tensor-model-parallel-size 4 --micro-batch-size $MICRO --global-batch-size 64 \
        --attention-dropout 0 --hidden-dropout 0 --bf16 --train-iters 100 --log-interval 10
done
