#!/bin/bash
torchrun --nproc_per_node 8 $MEGATRON/tools/checkpoint/convert.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 1024 --model-type GPT --loader mcore
