#!/bin/bash
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
  --attention-dropout 0 --hidden-dropout 0 --position-embedding-type rope \
  --micro-batch-size 2 --global-batch-size 64 --bf16 \
  --multi-latent-attention --q-lora-rank 512 --kv-lora-rank 256 --qk-head-dim 128 --v-head-dim 128
