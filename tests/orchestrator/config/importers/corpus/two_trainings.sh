#!/bin/bash
# First a training with short sequences, then one with long ones.
COMMON="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --bf16 --attention-dropout 0 --hidden-dropout 0"
torchrun --nproc_per_node 8 pretrain_gpt.py $COMMON --seq-length 2048 --max-position-embeddings 8192 \
    --position-embedding-type rope --micro-batch-size 4 --global-batch-size 256 --save stage1
torchrun --nproc_per_node 8 pretrain_gpt.py $COMMON --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --micro-batch-size 1 --global-batch-size 64 --load stage1
