#!/bin/bash
# No --bf16 and no --fp16: 32 bits, for which there is no flash kernel.
torchrun --nproc_per_node 4 pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --attention-dropout 0 --hidden-dropout 0 \
  --micro-batch-size 2 --global-batch-size 64 --recompute-granularity full --recompute-method uniform \
  --recompute-num-layers 1 --no-rope-fusion
