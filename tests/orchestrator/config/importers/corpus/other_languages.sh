#!/bin/bash
# 训练脚本：八张显卡 — „nur zum Testen“ – données privées
LAYERS=24      # слоёв
HIDDEN=1024    # 隐藏层大小
DATA="/donnees/corpus_français"
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads 16 \
  --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 64 \
  --attention-dropout 0 --hidden-dropout 0 --bf16 --data-path "$DATA"
