"""Launch scripts and configurations as users have them."""

from __future__ import annotations

MEGATRON_LM = r"""#!/bin/bash
# Runs GPT-3 857M on one node
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=2
MASTER_ADDR=${MASTER_ADDR:-localhost}
NODE_RANK=$SLURM_NODEID
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
TP=2
PP=${PP:-4}

CHECKPOINT_PATH=$1 #<Specify path>
VOCAB_FILE="gpt2-vocab.json"

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank $NODE_RANK
)

GPT_MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024 # width
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
)

TRAINING_ARGS=(
    --micro-batch-size 2
    --global-batch-size $((TP * 32))
    --train-iters 500000
    --lr 6.0e-5
    --bf16
    --use-distributed-optimizer
    --recompute-granularity full
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size "${TP}"
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
)
DATA_ARGS=(--tokenizer-type GPT2BPETokenizer --vocab-file $VOCAB_FILE)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    "${MODEL_PARALLEL_ARGS[@]}" \
    --save $CHECKPOINT_PATH \
    ${DATA_ARGS[@]} 2>&1 | tee train.log
"""

MEGATRON_DEEPSPEED = r"""#!/bin/bash
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
"""

DEEPSPEED = """{
  "train_batch_size": 16,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "zero_optimization": {"stage": 1, "overlap_comm": true},
  "bf16": {"enabled": true},
  "gradient_clipping": 1.0
}
"""

HF_GPT2 = """{
  "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
  "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
  "layer_norm_epsilon": 1e-05
}
"""

HF_LLAMA = """{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
  "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
  "vocab_size": 128256
}
"""

HF_GPT_NEOX = """{
  "model_type": "gpt_neox", "hidden_size": 2560, "intermediate_size": 10240, "max_position_embeddings": 2048,
  "num_attention_heads": 32, "num_hidden_layers": 32, "tie_word_embeddings": false, "torch_dtype": "float16",
  "vocab_size": 50688
}
"""
