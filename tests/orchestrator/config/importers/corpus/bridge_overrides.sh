#!/bin/bash
# Megatron Bridge: the recipe's values, and those that differ.
RECIPE=llama3_8b_pretrain_config
torchrun --nproc_per_node=8 --nnodes=2 scripts/training/run_recipe.py --recipe $RECIPE \
    model.tensor_model_parallel_size=2 \
    model.pipeline_model_parallel_size=2 \
    model.sequence_parallel=true \
    train.micro_batch_size=1 train.global_batch_size=128 train.train_iters=100 \
    ddp.overlap_grad_reduce=true \
    logger.log_interval=10
