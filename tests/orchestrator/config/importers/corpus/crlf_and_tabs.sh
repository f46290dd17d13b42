#!/bin/bash
LAYERS=16
torchrun --nproc_per_node 4 pretrain_gpt.py \
	--num-layers	$LAYERS --hidden-size 1024	--num-attention-heads 16 \
	--seq-length 1024 --max-position-embeddings 1024 \
	--micro-batch-size 2	--global-batch-size 64 --bf16 \
	--attention-dropout 0 --hidden-dropout 0
