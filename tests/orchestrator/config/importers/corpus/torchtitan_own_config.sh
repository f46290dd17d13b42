#!/bin/bash
torchrun --standalone --nproc-per-node 8 -m torchtitan.train --module ourlab.llama --config big \
    --parallelism.tensor_parallel_degree 2 --training.seq_len 4096
