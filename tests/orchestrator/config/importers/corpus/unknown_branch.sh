#!/bin/bash
# The micro-batch depends on the machine.
if nvidia-smi --query-gpu=name --format=csv | grep -q H100; then
    MICRO=4
else
    MICRO=2
fi
if [ -n "$DEBUG" ]; then
    set -x
fi
torchrun --nproc_per_node 8 pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size 2 --micro-batch-size $MICRO --global-batch-size 256 \
    --attention-dropout 0 --hidden-dropout 0 --bf16
