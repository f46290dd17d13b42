#!/bin/bash
# The machine says how many GPUs it has.
GPUS=$(nvidia-smi -L | wc -l)
NODES=${#HOSTS[@]}
torchrun --nproc_per_node $GPUS --nnodes ${WORLD_NODES} pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 256 --bf16 \
    --attention-dropout 0 --hidden-dropout 0
