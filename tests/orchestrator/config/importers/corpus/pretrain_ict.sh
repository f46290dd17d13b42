#!/bin/bash
torchrun --nproc_per_node 8 pretrain_ict.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 256 --max-position-embeddings 256 --ict-head-size 128 --bert-load bert
