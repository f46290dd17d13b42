#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
accelerate launch --num_processes 4 --mixed_precision bf16 train_sft.py \
    --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name trl-lib/Capybara \
    --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --max_length 2048 \
    --learning_rate 2e-4 --bf16 --gradient_checkpointing --packing \
    --use_peft --lora_r 16 --lora_alpha 32 --lora_target_modules q_proj v_proj --lora_dropout 0.0 \
    --load_in_4bit --output_dir out
