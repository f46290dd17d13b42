#!/bin/bash
# EXTRA_ARGS and LR come from the caller.
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
  --tensor-model-parallel-size $TENSOR_RANKS --micro-batch-size 4 --global-batch-size 256 \
  --attention-dropout 0 --hidden-dropout 0 --lr $LR --bf16 $EXTRA_ARGS "$@"
