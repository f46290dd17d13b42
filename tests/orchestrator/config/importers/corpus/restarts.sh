#!/bin/bash
# Starts again after a failure, from the last checkpoint.
until torchrun --nproc_per_node 2 pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 32 --fp16 --attention-dropout 0 --hidden-dropout 0 \
    --save checkpoints --load checkpoints; do
    echo "restarting" && sleep 10
done
