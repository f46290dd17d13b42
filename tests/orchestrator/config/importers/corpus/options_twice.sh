#!/bin/bash
BASE="--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --max-position-embeddings 1024
  --tensor-model-parallel-size 1 --micro-batch-size 1 --global-batch-size 64 --bf16
  --attention-dropout 0 --hidden-dropout 0"
# A deeper model in smaller pieces: the last one of an option counts.
torchrun --nproc_per_node 8 pretrain_gpt.py $BASE --num-layers 24 --tensor-model-parallel-size 2 --micro-batch-size 8
