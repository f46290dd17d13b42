#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 scripts/training/run_recipe.py --recipe llama3_8b_peft_1gpu_h100_bf16_config \
    model.tensor_model_parallel_size=2 \
    model.pipeline_model_parallel_size=2 \
    peft.dim=16 peft.alpha=32 peft.dropout=0.1 \
    'peft.target_modules=[linear_qkv,linear_proj]' \
    train.micro_batch_size=1 train.global_batch_size=128 
