#!/bin/bash
# Runs GPT-3 857M on one node
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=2
MASTER_ADDR=${MASTER_ADDR:-localhost}
NODE_RANK=$SLURM_NODEID
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2
PP=${PP:-4}

CHECKPOINT_PATH=$1 #<Specify path>
VOCAB_FILE="gpt2-vocab.json"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
)

GPT_MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024 # width
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size $((TP * 32))
    --train-iters 500000
    --lr 6.0e-5
    --bf16
    --use-distributed-optimizer
    --recompute-granularity full
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size "${TP}"
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
)
DATA_ARGS=(--tokenizer-type GPT2BPETokenizer --vocab-file $VOCAB_FILE)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    "${MODEL_PARALLEL_ARGS[@]}" \
    --save $CHECKPOINT_PATH \
    ${DATA_ARGS[@]} 2>&1 | tee train.log
