#!/bin/bash
torchrun --nproc_per_node 8 pretrain_t5.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --encoder-seq-length 512 --decoder-seq-length 128 --encoder-num-layers 12 --decoder-num-layers 12
