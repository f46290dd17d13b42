#!/bin/bash
CMD="torchrun --nproc_per_node 8 pretrain_gpt.py"
CMD="$CMD --num-layers 24"
CMD="$CMD --hidden-size 1024"
CMD="$CMD --num-attention-heads 16"
CMD="$CMD --seq-length 1024 --max-position-embeddings 1024"
CMD="$CMD --micro-batch-size 4 --global-batch-size 256"
CMD="$CMD --attention-dropout 0 --hidden-dropout 0 --fp16"
echo "$CMD"
eval $CMD 2>&1 | tee train.log
