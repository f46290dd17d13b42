#!/usr/bin/bash
# Four GPUs, zero bubble.
export NGPU=4
MODULE=llama3 CONFIG=llama3_8b ./run_train.sh \
    --parallelism.pipeline_parallel_degree 2 \
    --parallelism.pipeline_parallel_schedule ZBVZeroBubble \
    --parallelism.fsdp_reshard_after_forward never \
    --training.local_batch_size 8 --training.disable_cuda_graphs \
    activation-checkpoint:none "$@"
