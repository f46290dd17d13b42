#!/bin/bash
SCRIPT_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source shared/cluster_env.sh
. ./shared/not_there.sh

torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES pretrain_gpt.py \
  --num-layers 32 --hidden-size 2560 --num-attention-heads 32 --seq-length 2048 --max-position-embeddings 2048 \
  --tensor-model-parallel-size $TP_SIZE --micro-batch-size 4 --global-batch-size 64 $PRECISION_ARGS \
  --attention-dropout 0 --hidden-dropout 0
