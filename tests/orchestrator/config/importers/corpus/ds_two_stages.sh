#!/bin/bash
cat > ds.json <<EOF
{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2},
 "bf16": {"enabled": true}}
EOF
deepspeed --num_gpus 8 --num_nodes 1 pretrain_gpt.py --deepspeed --deepspeed_config ds.json --zero-stage 1 \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 64 --bf16 --no-pipeline-parallel
