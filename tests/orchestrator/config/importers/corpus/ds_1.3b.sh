#!/bin/bash
DIR=`pwd`
MODEL_SIZE=1.3
NUM_LAYERS=24; HIDDEN_SIZE=2048
NUM_ATTN_HEADS=16
GLOBAL_BATCH_SIZE=64
BATCH_SIZE=4
MP_SIZE=2
PP_SIZE=1
NUM_GPUS=8
ZERO_STAGE=1
ACTIVATION_CHECKPOINT="true"

megatron_options=" \
        --tensor-model-parallel-size ${MP_SIZE} \
        --micro-batch-size ${BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} \
        --seq-length 2048 \
        --vocab-size 51200 \
        --fp16"

if [ "${ACTIVATION_CHECKPOINT}" = "true" ]; then
megatron_options="${megatron_options} \
        --checkpoint-activations"
fi

config_json="./ds_config.json"
cat <<EOT > $config_json
{
  "train_batch_size": $GLOBAL_BATCH_SIZE,
  "train_micro_batch_size_per_gpu": $BATCH_SIZE,
  "steps_per_print": 1,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "fp16": {"enabled": true}
}
EOT

deepspeed_options=" --deepspeed --deepspeed_config ${config_json} --zero-stage ${ZERO_STAGE} --no-pipeline-parallel"

run_cmd="deepspeed --num_gpus ${NUM_GPUS} ${DIR}/pretrain_gpt.py ${megatron_options} ${deepspeed_options} &> out.log"
echo ${run_cmd}
eval ${run_cmd}
set +x
