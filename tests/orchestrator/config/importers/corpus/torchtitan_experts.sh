#!/bin/bash
torchrun --nproc_per_node 8 -m torchtitan.train --module deepseek_v3 --config deepseek_v3_16b \
    --parallelism.expert_parallel_degree 8
