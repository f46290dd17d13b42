#!/bin/bash
# LoRA by TRL, whose ranks shard the weights as accelerate's configuration says.
accelerate launch --config_file accelerate_fsdp.yaml -m trl.scripts.sft \
    --model_name_or_path Qwen/Qwen3-8B --dataset_name trl-lib/Capybara --bf16 True \
    --gradient_accumulation_steps=4 --use_peft --lora_target_modules all-linear
