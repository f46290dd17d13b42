#!/bin/bash
# One process a GPU; the ranks come from MPI.
mpirun -np 16 --hostfile hosts --map-by ppr:8:node -x CUDA_DEVICE_MAX_CONNECTIONS=1 \
    python pretrain_gpt.py \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size 8 --pipeline-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 256 --bf16 \
    --attention-dropout 0 --hidden-dropout 0
