#!/bin/bash
export WANDB_API_KEY=0123456789abcdefSECRET0123456789abcdefff
export HF_TOKEN="hf_SECRETsecretSECRETsecret"
TOKEN=ghp_SECRET1234567890
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
  --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 256 --bf16 \
  --attention-dropout 0 --hidden-dropout 0 \
  --wandb-project gpt --wandb-exp-name run1 \
  --tracker-key $WANDB_API_KEY --upload-token=$TOKEN --data-path s3://user:SECRETpass@bucket/data
