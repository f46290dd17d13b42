#!/bin/bash
global_batch=256
micro_batch=2
zero_stage=2
config="ds_config_${global_batch}_${micro_batch}.json"
sed -e "s/GBSIZE/${global_batch}/" -e "s/MBSIZE/${micro_batch}/" template.json > ${config}

options=" \
    --tensor-model-parallel-size 1 --no-pipeline-parallel \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size ${micro_batch} --global-batch-size ${global_batch} --fp16 \
    --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt"
options="${options} --deepspeed --deepspeed_config ${config} --zero-stage ${zero_stage}"

deepspeed --hostfile=/job/hostfile pretrain_gpt.py ${options} &> train.log
