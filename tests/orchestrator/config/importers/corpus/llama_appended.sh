#!/usr/bin/env bash
set -euo pipefail

ARGS=(--num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008)
ARGS+=(--num-attention-heads 32)
ARGS+=(
  --seq-length 4096 --max-position-embeddings 4096
  --position-embedding-type rope --normalization RMSNorm --swiglu
  --untie-embeddings-and-output-weights --disable-bias-linear
)
OPTIONS="--micro-batch-size 2"
OPTIONS+=" --global-batch-size 128"
OPTIONS="$OPTIONS --bf16 --attention-dropout 0.0 --hidden-dropout 0.0"

# Four stages of eight layers, two chunks each
ARGS+=(--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 4)
# ARGS+=(--fp8-format hybrid)

torchrun --standalone --nproc-per-node 8 pretrain_gpt.py "${ARGS[@]}" $OPTIONS \
  --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model --vocab-size 32000 --lr 3e-4
