#!/bin/bash
# Names of an old Megatron.
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --attention-dropout 0 --hidden-dropout 0 \
  --model-parallel-size 2 --batch-size 4 --warmup 0.01 --checkpoint-activations --fp16
