#!/bin/bash
CONFIG=shared/ds_zero3_offload.json
run_cmd="deepspeed --num_gpus=8 pretrain_gpt.py \
    --deepspeed --deepspeed_config $CONFIG --zero-stage 3 --no-pipeline-parallel --cpu-optimizer \
    --deepspeed-activation-checkpointing --checkpoint-activations \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --num-key-value-heads 8 --ffn-hidden-size 11008 \
    --swiglu --normalization rmsnorm --use-rotary-position-embeddings --untie-embeddings-and-output-weights \
    --disable-bias-linear --seq-length 2048 --max-position-embeddings 2048 \
    --micro-batch-size 2 --global-batch-size 64 --bf16 --use-flash-attn-v2 \
    --attention-dropout 0 --hidden-dropout 0 \
    --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model tokenizer.model"
echo ${run_cmd}
eval ${run_cmd}
