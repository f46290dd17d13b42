#!/bin/bash
# 8 data-parallel ranks of 4 sequences do not divide a batch of 100.
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --attention-dropout 0 --hidden-dropout 0 \
  --micro-batch-size 4 --global-batch-size 100 --bf16
