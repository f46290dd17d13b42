"""Engines: one step of a layout by torch, DeepSpeed, megatron-core, torchtitan or accelerate, with
sharding, gradients, optimizer and pipeline schedules."""
