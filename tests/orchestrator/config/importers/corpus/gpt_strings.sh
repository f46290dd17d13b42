#!/bin/bash
# Two nodes with four GPUs each, started with the old launcher on each node.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=4
NNODES=2
NODE_RANK=${NODE_RANK}
MASTER_ADDR=10.1.0.17

DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --node_rank $NODE_RANK \
    --master_addr $MASTER_ADDR \
    --master_port 6000
"

GPT_ARGS="
    --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 1 \
    --use-distributed-optimizer \
    --overlap-grad-reduce \
    --recompute-activations \
    --num-layers 24 \
    --hidden-size 2048 \
    --num-attention-heads 16 \
    --seq-length 1024 \
    --max-position-embeddings 1024 \
    --micro-batch-size 4 \
    --global-batch-size 64 \
    --attention-dropout 0 --hidden-dropout 0.0 \
    --lr 0.00015 \
    --train-iters 500000 \
    --bf16
"

DATA_ARGS="--tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt"

python -m torch.distributed.launch $DISTRIBUTED_ARGS \
    pretrain_gpt.py \
    $GPT_ARGS \
    $DATA_ARGS \
    --distributed-backend nccl
