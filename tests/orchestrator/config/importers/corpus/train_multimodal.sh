#!/bin/bash
torchrun --nproc_per_node 8 examples/multimodal/train.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --bf16 \
  --seq-length 576 --decoder-seq-length 1024 --language-model-type mistral_7b
