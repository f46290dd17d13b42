"""YAML configurations as users have them."""

from __future__ import annotations

NANOTRON = """\
# Llama 3 1B
general:
  project: pretraining
  run: llama-1b
  seed: 42
checkpoints:
  checkpoint_interval: 1000
  checkpoints_path: checkpoints
logging:
  iteration_step_info_interval: 1
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  init_method:
    std: 0.025
  make_vocab_size_divisible_by: 1
  model_config:
    hidden_act: silu
    hidden_size: 2048
    intermediate_size: 8192
    is_llama_config: true
    max_position_embeddings: 4096
    num_attention_heads: 32
    num_hidden_layers: 16
    num_key_value_heads: 8
    rope_scaling: null
    rope_theta: 500000.0
    tie_word_embeddings: true
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  zero_stage: 1
parallelism:
  dp: 4
  pp: 2
  tp: 2
  pp_engine: 1f1b
  tp_mode: REDUCE_SCATTER
  tp_linear_async_communication: true
  recompute_layer: true
tokens:
  sequence_length: 4096
  train_steps: 30000
  micro_batch_size: 2
  batch_accumulation_per_replica: 8
"""
