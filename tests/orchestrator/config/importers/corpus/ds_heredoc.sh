#!/bin/bash
BASE_PATH=$(dirname "$0")
DS_CONFIG=ds_config.json
TP=2
PP=2
NLAYERS=24
HIDDEN=2048
MICRO_BATCH=4
GLOBAL_BATCH=128
ZERO_STAGE=1

cat <<EOT > $DS_CONFIG
{
  "train_batch_size": $GLOBAL_BATCH,
  "train_micro_batch_size_per_gpu": $MICRO_BATCH,
  "steps_per_print": 1,
  "zero_optimization": {"stage": $ZERO_STAGE},
  "fp16": {"enabled": true, "initial_scale_power": 12},
  "gradient_clipping": 1.0,
  "wall_clock_breakdown": true
}
EOT

ds_args=""
ds_args=" --deepspeed ${ds_args}"
ds_args=" --deepspeed_config=$DS_CONFIG ${ds_args}"
ds_args=" --zero-stage=$ZERO_STAGE ${ds_args}"
ds_args=" --deepspeed-activation-checkpointing ${ds_args}"

deepspeed --num_nodes 2 --num_gpus 8 pretrain_gpt.py \
    --tensor-model-parallel-size $TP \
    --pipeline-model-parallel-size $PP \
    --num-layers $NLAYERS --hidden-size $HIDDEN --num-attention-heads 16 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size $MICRO_BATCH --global-batch-size $GLOBAL_BATCH \
    --checkpoint-activations --fp16 --attention-dropout 0 --hidden-dropout 0 \
    --tokenizer-type GPT2BPETokenizer --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt \
    --data-impl mmap --split 949,50,1 \
    $ds_args
