#!/bin/bash
IMAGE=nvcr.io/nvidia/pytorch:25.04-py3
docker run --gpus all --ipc=host --rm -v /data:/data -w /workspace/Megatron-LM $IMAGE \
    bash -c "torchrun --nproc_per_node 8 pretrain_gpt.py \
        --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
        --micro-batch-size 4 --global-batch-size 256 --bf16 --attention-dropout 0 --hidden-dropout 0"
