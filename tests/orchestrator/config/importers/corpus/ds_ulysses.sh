#!/bin/bash
deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --deepspeed_config shared/ds_zero3_offload.json --zero-stage 3 \
    --ds-sequence-parallel-size 4 --no-pipeline-parallel \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 32768 --max-position-embeddings 32768 \
    --micro-batch-size 2 --global-batch-size 64 --bf16
