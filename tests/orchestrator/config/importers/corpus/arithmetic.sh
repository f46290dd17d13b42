#!/bin/bash
NODES=4
GPUS=8
WORLD=$((NODES * GPUS))
TP=4
PP=2
DP=$((WORLD / (TP * PP)))
MICRO=2
ACCUMULATION=8
GLOBAL=$(( MICRO * DP * ACCUMULATION ))
HIDDEN=5120
FFN=$(($HIDDEN * 4))
let LAYERS=8*5
SAVE_EVERY=$(( 10 ** 3 ))

torchrun --nnodes=$NODES --nproc_per_node=$GPUS pretrain_gpt.py \
  --num-layers $LAYERS --hidden-size $HIDDEN --ffn-hidden-size $FFN --num-attention-heads 40 \
  --seq-length $((1 << 11)) --max-position-embeddings 2048 \
  --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
  --micro-batch-size $MICRO --global-batch-size $GLOBAL --fp16 \
  --vocab-file vocab.json --merge-file merges.txt \
  --attention-dropout 0 --hidden-dropout 0 --save-interval $SAVE_EVERY
