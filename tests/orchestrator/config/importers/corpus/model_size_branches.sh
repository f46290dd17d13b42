#!/bin/bash
MODEL_SIZE=13B

if [ "$MODEL_SIZE" = "7B" ]; then
    LAYERS=32; HIDDEN=4096; HEADS=32; FFN=11008; TP=1
elif [[ $MODEL_SIZE == "13B" ]]; then
    LAYERS=40; HIDDEN=5120; HEADS=40; FFN=13824; TP=2
elif [ $MODEL_SIZE == 70B ]; then
    LAYERS=80; HIDDEN=8192; HEADS=64; FFN=28672; TP=8
    GQA="--group-query-attention --num-query-groups 8"
else
    echo "unknown size $MODEL_SIZE"
    exit 1
fi

USE_SP=true
if $USE_SP && [ $TP -gt 1 ]; then
    PARALLEL="--sequence-parallel"
fi

torchrun --nproc_per_node 8 --nnodes 2 --node_rank 0 pretrain_gpt.py \
    --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS --ffn-hidden-size $FFN $GQA \
    --seq-length 4096 --max-position-embeddings 4096 \
    --position-embedding-type rope --normalization RMSNorm --swiglu \
    --untie-embeddings-and-output-weights --disable-bias-linear \
    --tensor-model-parallel-size $TP $PARALLEL \
    --micro-batch-size 1 --global-batch-size 256 \
    --attention-dropout 0 --hidden-dropout 0 --bf16 --use-distributed-optimizer \
    --tokenizer-type Llama2Tokenizer --tokenizer-model t.model --vocab-size 32000
