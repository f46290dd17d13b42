#!/bin/bash
# A profiler and an environment around the launcher, in the background.
MEGATRON=$HOME/Megatron-LM
cd $MEGATRON || exit 1
mkdir -p logs
nohup env NCCL_DEBUG=WARN CUDA_DEVICE_MAX_CONNECTIONS=1 \
    nsys profile -s none -t nvtx,cuda -o logs/profile --force-overwrite true \
    numactl --interleave=all \
    torchrun --nproc_per_node 8 --master_port 6001 $MEGATRON/pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 4 --global-batch-size 256 --bf16 --attention-dropout 0 --hidden-dropout 0 \
    > logs/train.log 2>&1 &
