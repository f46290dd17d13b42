#!/bin/bash
torchrun --nproc_per_node 8 tasks/main.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 1024 --task LAMBADA --valid-data lambada.jsonl
