#!/bin/bash
torchrun --nproc_per_node 8 ./pretrain_mamba.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 4096 --hybrid-layer-pattern M-M-M*-M-M- --position-embedding-type none
