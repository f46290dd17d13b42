#!/bin/bash
# The same script trains in 16 bits with DTYPE="bf16".
DTYPE="fp8"
LAYERS=32
MODEL_ARGS=(
    --use-mcore-models
    --num-layers $LAYERS --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --kv-channels 128
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000 --swiglu --normalization RMSNorm
    --untie-embeddings-and-output-weights --disable-bias-linear
    --attention-dropout 0.0 --hidden-dropout 0.0
    --attention-backend fused
)
TRAINING_ARGS=(--micro-batch-size 1 --global-batch-size 128 --bf16 --grad-reduce-in-bf16)
DTYPE_ARGS=()
if [[ "$DTYPE" == "fp8" ]]; then
    DTYPE_ARGS+=(
        "--fp8-format hybrid"
        "--fp8-amax-history-len 1024"
    )
fi
TRAINING_ARGS+=("${DTYPE_ARGS[@]}")
DATA_ARGS=(
    "--mock-data"
    "--tokenizer-type HuggingFaceTokenizer"
    "--tokenizer-model llama"
    "--vocab-size 128256"
    "--split '99,1,0'"
)

torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${DATA_ARGS[@]} \
    --tensor-model-parallel-size 1 --context-parallel-size 1 \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
