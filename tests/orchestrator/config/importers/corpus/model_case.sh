#!/bin/bash
MODEL=gpt-medium
case "$MODEL" in
  gpt-small)  LAYERS=12 HIDDEN=768 HEADS=12 ;;
  gpt-medium|gpt-355m)
    LAYERS=24
    HIDDEN=1024
    HEADS=16
    ;;
  gpt-*) LAYERS=36 HIDDEN=1280 HEADS=20 ;;
  *) echo "no such model" >&2; exit 2 ;;
esac
PRECISION=bf16
case $PRECISION in
  bf16) PRECISION_ARGS="--bf16" ;;
  fp8) PRECISION_ARGS="--bf16 --fp8-format hybrid" ;;
esac

python -m torch.distributed.run --nnodes 1 --nproc-per-node 4 \
    pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS \
    --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 128 \
    $PRECISION_ARGS --attention-backend unfused --attention-dropout 0 --hidden-dropout 0
