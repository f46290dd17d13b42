#!/bin/bash
TP=${TP:-2}
PP=${PP:=2}
: "${MICRO_BATCH:=4}"
GPUS=${GPUS_PER_NODE:-8}
OUTPUT=${1:-"checkpoints/gpt"}
LAYERS=${LAYERS-16}

torchrun --nnodes ${NNODES:-1} --nproc_per_node ${GPUS} pretrain_gpt.py \
    --num-layers ${LAYERS} --hidden-size 1024 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} --sequence-parallel \
    --micro-batch-size ${MICRO_BATCH} --global-batch-size 64 \
    --vocab-size 50304 --tokenizer-type HuggingFaceTokenizer --tokenizer-model gpt2 \
    --attention-dropout 0 --hidden-dropout 0 \
    --bf16 --save $OUTPUT
