#!/bin/bash
torchrun --nproc_per_node 8 tools/run_text_generation_server.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 1024 --max-position-embeddings 1024 --load gpt --inference-max-requests 8
