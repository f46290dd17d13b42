#!/bin/bash
set -x
torchrun --nproc_per_node 8 pretrain_gpt.py \
    `# the model` \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    `# --fp8-format hybrid` \
    --tensor-model-parallel-size 2 `# within a node` \
    --micro-batch-size 4 --global-batch-size 256 --bf16 \
    --attention-dropout 0 --hidden-dropout 0   # none
