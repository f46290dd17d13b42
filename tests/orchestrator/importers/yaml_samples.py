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

GPT_NEOX = """\
# Llama 7B on two nodes
{
  "pipe-parallel-size": 2,
  "model_parallel_size": 2,
  "global_num_gpus": 16,
  "num_gpus": 8,

  "num-layers": 32,
  "hidden_size": 4096,
  "intermediate_size": 32768,
  "mlp_multiple_of": 256,
  "num_attention_heads": 32,
  "num_kv_heads": 8,
  "seq_length": 4096,
  "max_position_embeddings": 4096,
  "norm": "rmsnorm",
  "rms_norm_epsilon": 1.0e-5,
  "pos_emb": "rotary",
  "no_weight_tying": true,
  "activation": "swiglu",
  "use_bias_in_attn_linear": false,
  "use_bias_in_mlp": false,
  "make_vocab_size_divisible_by": 64,
  "attention_config": [[["flash"], 32]],
  "scaled_upper_triang_masked_softmax_fusion": true,

  "optimizer": {"type": "Adam", "params": {"lr": 0.0003, "betas": [0.9, 0.95], "eps": 1.0e-8}},
  "zero_optimization": {
    "stage": 1,
    "overlap_comm": True,
    "reduce_bucket_size": 104857600,
    "contiguous_gradients": True,
  },
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 16,
  "checkpoint-activations": true,
  "checkpoint_num_layers": 2,
  "sequence_parallel": true,
  "precision": "bfloat16",
  "bf16": {"enabled": true},
  "data_types": {"grad_accum_dtype": "fp32"},
  "train_iters": 320000,
  "tensorboard_dir": "tensorboard",
}
"""

BRIDGE = """\
# Overrides of llama32_1b_pretrain_config
dataset:
  seq_length: 4096
train:
  train_iters: 100
  global_batch_size: 64
  micro_batch_size: 2
optimizer:
  lr: 0.0003
checkpoint:
  save: ./checkpoints/llama32_1b
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4
  virtual_pipeline_model_parallel_size: 2
  context_parallel_size: 1
  sequence_parallel: true
  recompute_granularity: selective
mixed_precision: bf16_mixed
comm_overlap:
  tp_comm_overlap: true
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
"""
